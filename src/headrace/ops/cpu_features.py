"""What this CPU can run: instruction sets, cores, caches, and whether the native kernels are built.

`detect()` asks the C++ extension (CPUID, and whether the operating system saves the registers). Without the
extension it reads /proc and /sys instead, and its `note` says why the extension is missing.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from headrace.ops.native_sources import OTHER_SOURCES, built_from_other_sources

_extension: ModuleType | None
_load_error: ImportError | None
try:
    from headrace import _native
except ImportError as error:
    _extension, _load_error = None, error
else:
    _extension, _load_error = _native, None

try:
    from headrace._build_info import NATIVE_MISSING
except ImportError:
    NATIVE_MISSING = "this source tree was never installed"

FLAGS = frozenset(
    {"avx2", "fma", "f16c", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
    | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"}
)
"""Every flag that `detect` may report, named as in Linux's /proc/cpuinfo."""


@dataclass(frozen=True)
class Cores:
    physical: int
    """Cores of the machine."""
    logical: int
    """Hardware threads of the machine."""
    usable: int
    """Cores that this process can keep busy: those of its affinity mask, at most its cgroup's CPU quota."""


@dataclass(frozen=True)
class Caches:
    """Bytes of one instance of each data cache; None where unknown."""

    l1d: int | None
    l2: int | None
    l3: int | None


@dataclass(frozen=True)
class CpuFeatures:
    vendor: str
    brand: str
    flags: frozenset[str]
    cores: Cores
    caches: Caches
    native: bool
    """True when the C++ extension is loaded, and the fields come from CPUID."""
    note: str
    """One line for the user: which ops this machine gets, and why."""
    kernels: tuple[str, ...] = ()
    """Instruction sets that the native kernels can use on this machine, best first."""

    def describe(self) -> str:
        """Three lines of text: the machine, its flags, the note."""
        caches = ", ".join(
            f"{name} {_size(size)}"
            for name, size in (("L1d", self.caches.l1d), ("L2", self.caches.l2), ("L3", self.caches.l3))
            if size is not None
        )
        cores = f"{self.cores.usable} of {self.cores.physical} cores usable"
        return "\n".join(
            [
                f"CPU: {self.brand or 'unknown'} ({cores}{'; ' + caches if caches else ''})",
                f"     {' '.join(sorted(self.flags)) or 'no vector extensions that the native kernels use'}",
                f"     {self.note}",
            ]
        )


@functools.cache
def detect() -> CpuFeatures:
    """This machine's CPU, read once. With the extension it also asks Linux for AMX permission, for the process."""
    return detect_without_native() if _extension is None else _detect_native(_extension)


def packed_layout(kernels: str) -> str | None:
    """The layout of matrices that native kernels of this machine read; None where there are none of that name."""
    if _extension is None or kernels not in detect().kernels:
        return None
    return str(_extension.Kernels(kernels).layout)


def detect_without_native() -> CpuFeatures:
    """The fallback of `detect`: /proc and /sys on Linux, almost nothing elsewhere."""
    first = _proc_cpus()[0] if _proc_cpus() else {}
    return CpuFeatures(
        vendor=first.get("vendor_id", ""),
        brand=first.get("model name", ""),
        flags=FLAGS & set(first.get("flags", "").split()),
        cores=_cores(),
        caches=_sysfs_caches(),
        native=False,
        note=f"native kernels not built: {_why_missing()}",
    )


def _detect_native(module: ModuleType) -> CpuFeatures:
    info = module.detect_cpu()
    return CpuFeatures(
        vendor=info.vendor,
        brand=info.brand,
        flags=frozenset(info.flags),
        cores=_cores(),
        caches=Caches(l1d=info.l1d_bytes or None, l2=info.l2_bytes or None, l3=info.l3_bytes or None),
        native=True,
        note=OTHER_SOURCES if built_from_other_sources() else "native kernels built",
        kernels=tuple(module.available_kernels()),
    )


def _why_missing() -> str:
    if NATIVE_MISSING:
        return NATIVE_MISSING
    return f"the extension was built but does not load ({_load_error})" if _load_error else "not in use"


# ---- The machine as Linux reports it ----


@functools.cache
def _proc_cpus() -> tuple[dict[str, str], ...]:
    """One dict of field -> text for each hardware thread in /proc/cpuinfo; empty where there is none."""
    text = _read("/proc/cpuinfo")
    blocks = [
        re.findall(r"^([^:\n]+?)[ \t]*:[ \t]*(.*?)[ \t]*$", block, re.M) for block in text.split("\n\n")
    ]
    return tuple(cpu for block in blocks if "processor" in (cpu := dict(block)))


def _cores() -> Cores:
    core_of = _core_of_thread()
    logical = len(core_of) or os.cpu_count() or 1
    physical = len(set(core_of.values())) or logical
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(logical))
    usable = len({core_of.get(thread, (thread,)) for thread in affinity})
    quota = _cgroup_cpus()
    if quota is not None:
        usable = min(usable, max(1, int(quota)))
    return Cores(physical=physical, logical=logical, usable=usable)


def _core_of_thread() -> dict[int, tuple[object, ...]]:
    """Hardware thread -> a key that its siblings on the same core share; empty where Linux does not report it."""
    online = _expand(_read("/sys/devices/system/cpu/online"))
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    siblings = {thread: _read(topology.format(thread)).strip() for thread in online}
    if siblings and all(siblings.values()):
        return {thread: (names,) for thread, names in siblings.items()}
    return {
        int(cpu["processor"]): (cpu.get("physical id"), cpu.get("core id", cpu["processor"]))
        for cpu in _proc_cpus()
    }


def _cgroup_cpus() -> float | None:
    """CPUs' worth of time that the container may use, from cgroup v2 or v1; None without a limit."""
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if not quota:
        quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    try:
        limit = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return None
    return limit if limit > 0 else None


def _sysfs_caches() -> Caches:
    sizes: dict[str, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        match = re.fullmatch(r"(\d+)([KM]?)", _read(index / "size").strip())
        if match and _read(index / "type").strip() in ("Data", "Unified"):
            level = _read(index / "level").strip()
            sizes[level] = int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[match[2]]
    return Caches(l1d=sizes.get("1"), l2=sizes.get("2"), l3=sizes.get("3"))


def _expand(ranges: str) -> list[int]:
    """CPU numbers of a kernel list such as "0-3,8"."""
    numbers: list[int] = []
    for part in filter(None, ranges.strip().split(",")):
        low, _, high = part.partition("-")
        numbers.extend(range(int(low), int(high or low) + 1))
    return numbers


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:g} MiB" if n_bytes >= 1 << 20 else f"{n_bytes / 2**10:g} KiB"
