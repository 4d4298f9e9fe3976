"""The machine to plan for: this one, as detected, or one with the devices of a data sheet (`plan.hardware_table`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from headrace.ops.cpu_features import CpuFeatures, detect
from headrace.plan.units import GIB

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine to run models. Memory in bytes; for "cuda" it is the GPU's. `flags` as in /proc/cpuinfo.

    kernels: instruction sets of the native CPU kernels usable here, best first; `kernels_note`: why there are none.
    """

    kind: DeviceKind
    name: str
    memory_total: int
    memory_available: int  # what a new process can take now without pushing others out
    cores: int
    flags: frozenset[str] = frozenset()
    kernels: tuple[str, ...] = ()
    kernels_note: str = ""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The data sheet of a device, and how many of them stand in one machine.

    name: as `--hardware` takes it, of one device. title: as the vendor calls it. memory: bytes of one device.
    bandwidth: bytes/s between that memory and the device. peak: dense operations/s by the type of a product: "f32",
    "f16", "bf16", "fp8", "i8", "int4", "fp4"; types that the device does not multiply are left out.
    link: bytes/s in one direction between two of the devices, all links of one together; 0 where there is none.
    watts: the most that one device draws by design. most: devices that share such links in one machine.
    flags, kernels: of a CPU, as `Machine` has them.
    """

    name: str
    title: str
    kind: DeviceKind
    memory: int
    bandwidth: float
    peak: tuple[tuple[str, float], ...]
    source: str
    link: float = 0.0
    watts: float | None = None
    cores: int = 1
    most: int = 8
    count: int = 1
    flags: frozenset[str] = frozenset()
    kernels: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """As `--hardware` takes it, with the number of devices: "4xa10g"."""
        return self.name if self.count == 1 else f"{self.count}x{self.name}"

    @property
    def total_memory(self) -> int:
        """Bytes of all devices."""
        return self.memory * self.count

    @property
    def total_watts(self) -> float | None:
        """Of all devices; hosts and cooling are not counted."""
        return None if self.watts is None else self.watts * self.count

    def times(self, count: int) -> Hardware:
        """A machine with `count` of them."""
        return replace(self, count=count)

    def peak_of(self, product: str) -> float | None:
        """Operations/s of one device for products of that type, or None where it does not multiply it."""
        return dict(self.peak).get(product)

    def machine(self) -> Machine:
        """One empty device, ready to plan for."""
        return Machine(self.kind, self.title, self.memory, self.memory, self.cores, self.flags, self.kernels)


_UNKNOWN_MEMORY = 4 * GIB  # assumed where the system reports nothing


def this_machine(features: CpuFeatures | None = None, *, root: Path = Path("/")) -> Machine:
    """The CPU that this process runs on, with the memory that its cgroup allows.

    `features` None asks `detect()`; `root` is where proc and sys are mounted.
    """
    cpu = features or detect()
    total, available = _memory(root)
    for limit, used in _cgroup_memory(root):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return Machine(
        kind="cpu",
        name=cpu.brand or "CPU",
        memory_total=total,
        memory_available=min(available, total),
        cores=cpu.cores.usable,
        flags=cpu.flags,
        kernels=cpu.kernels,
        kernels_note="" if cpu.kernels else cpu.note,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(text: str) -> int | None:
    """A whole number >= 0, or None: "max" and "-1" mean no limit."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _memory(root: Path) -> tuple[int, int]:
    sizes: dict[str, int] = {}
    for line in _read(root / "proc/meminfo").splitlines():
        key, _, rest = line.partition(":")
        value = _number(rest.removesuffix("kB"))
        if value is not None:
            sizes[key] = value * 1024
    total = sizes.get("MemTotal", 0)
    if total:
        # Linux before 3.14 has no MemAvailable.
        return total, sizes.get("MemAvailable", sizes.get("MemFree", 0) + sizes.get("Cached", 0))
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        total = 0
    total = total if total > 0 else _UNKNOWN_MEMORY
    return total, total // 2  # used memory is unknown: half of the total rarely swaps


def _cgroups(root: Path) -> Iterator[tuple[Path, bool]]:
    """Directories whose memory limits bind this process, innermost first, and whether each is of version 2.

    Inside a container the path in /proc/self/cgroup may be the host's and absent here; the mount's root is
    then the container's own group, so it is always read.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, version2 = mounts, True
        elif "memory" in controllers.split(","):
            base, version2 = mounts / controllers, False
            base = base if base.is_dir() else mounts / "memory"
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        if ".." in inner.parts:  # a group outside of this namespace
            inner = PurePosixPath()
        yield from ((base / part, version2) for part in (inner, *inner.parents) if part != PurePosixPath())
        yield base, version2


def _cgroup_memory(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes that cannot be reclaimed) of each group with a limit."""
    for group, version2 in _cgroups(root):
        limit = _number(_read(group / ("memory.max" if version2 else "memory.limit_in_bytes")))
        if limit is None:
            continue
        used = _number(_read(group / ("memory.current" if version2 else "memory.usage_in_bytes"))) or 0
        cache_key = "inactive_file" if version2 else "total_inactive_file"
        for line in _read(group / "memory.stat").splitlines():
            key, _, value = line.partition(" ")
            if key == cache_key:  # page cache that the kernel drops before it refuses memory
                used = max(0, used - (_number(value) or 0))
        yield limit, used
