"""CPU detection: the CPUID path, the /proc path, and that they agree."""

from __future__ import annotations

import ast
import dataclasses
import os
import platform
import sys
from pathlib import Path

import pytest

import headrace
from headrace.ops import cpu_features
from headrace.ops.cpu_features import FLAGS, CpuFeatures, detect, detect_without_native
from tests import needs

on_linux_x86 = sys.platform == "linux" and platform.machine() == "x86_64"
needs_native = pytest.mark.usefixtures("native")


@pytest.fixture(name="native")
def _native() -> None:
    needs.native()


# The CPUID words of a server with every flag (Sapphire Rapids), its operating system saving every register.
EVERYTHING = {
    "leaf1_ecx": 1 << 12 | 1 << 27 | 1 << 28 | 1 << 29,
    "leaf7_ebx": 1 << 5 | 1 << 16 | 1 << 17 | 1 << 30 | 1 << 31,
    "leaf7_ecx": 1 << 11,
    "leaf7_edx": 1 << 22 | 1 << 23 | 1 << 24 | 1 << 25,
    "leaf7_1_eax": 1 << 4 | 1 << 5,
    "xcr0": 0x600E7,
    "amx_granted": True,
}
AMX = {"amx_tile", "amx_int8", "amx_bf16"}
AVX512 = {flag for flag in FLAGS if flag.startswith("avx512")}


def usable_flags(**changed: int | bool) -> set[str]:
    return set(cpu_features._extension.usable_cpu_flags(**{**EVERYTHING, **changed}))


def test_detect_describes_this_machine():
    cpu = detect()
    assert cpu.flags <= FLAGS
    assert 1 <= cpu.cores.usable <= cpu.cores.physical <= cpu.cores.logical
    assert cpu.cores.logical == os.cpu_count() or sys.platform != "linux"
    assert cpu.note in cpu.describe()
    assert detect() is cpu, "read once"
    with pytest.raises(dataclasses.FrozenInstanceError):
        cpu.native = False


@needs_native
@pytest.mark.skipif(not on_linux_x86, reason="compares CPUID with Linux's /proc/cpuinfo")
def test_native_and_fallback_agree():
    native, fallback = detect(), detect_without_native()
    # A sandbox may refuse AMX to a process though the machine has it; only then may the two differ.
    refused = AMX if not native.flags & AMX else set()
    assert native.flags == fallback.flags - refused
    assert native.vendor == fallback.vendor
    assert native.brand == fallback.brand
    assert native.cores == fallback.cores
    assert native.caches.l1d == fallback.caches.l1d or fallback.caches.l1d is None


@needs_native
@pytest.mark.needs_isa("avx512_bf16")
def test_intel_multiplies_bf16_as_floats():
    """Its cores do half as many products of bf16 pairs a cycle as of floats, AMD's twice as many."""
    cpu = detect()
    if {"avx512", "avx512_vnni"} <= {*cpu.kernels}:
        floats_first = cpu.kernels.index("avx512_vnni") < cpu.kernels.index("avx512")
        assert floats_first == (cpu.vendor == "GenuineIntel")


@needs_native
def test_every_flag_is_recognized():
    assert usable_flags() == FLAGS


@needs_native
@pytest.mark.parametrize(
    ("changed", "lost"),
    [
        ({"amx_granted": False}, AMX),
        ({"xcr0": 0xE7}, AMX),  # an operating system from before AMX
        ({"xcr0": 0x7}, AMX | AVX512),  # and from before AVX-512
        ({"xcr0": 0x3}, FLAGS),
        ({"xcr0": 0}, FLAGS),
        ({"leaf7_ebx": 1 << 5 | 1 << 30 | 1 << 31}, AVX512),  # AVX-512 parts without their foundation
        ({"leaf7_edx": 1 << 22 | 1 << 23 | 1 << 25}, AMX),
        ({"leaf7_1_eax": 0}, {"avx_vnni", "avx512_bf16"}),
    ],
)
def test_a_flag_needs_cpu_and_operating_system(changed: dict[str, int], lost: set[str]):
    assert FLAGS - usable_flags(**changed) == lost


def test_fallback_gives_the_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_features, "NATIVE_MISSING", "no C++ compiler was found at install")
    cpu = detect_without_native()
    assert not cpu.native
    assert cpu.note == "native kernels not built: no C++ compiler was found at install"


def test_fallback_reports_an_extension_that_does_not_load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_features, "NATIVE_MISSING", "")
    monkeypatch.setattr(cpu_features, "_load_error", ImportError("undefined symbol: f"))
    assert "undefined symbol: f" in detect_without_native().note


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A made-up Linux: path -> text."""
    files: dict[str, str] = {}
    monkeypatch.setattr(cpu_features, "_read", lambda path: files.get(str(path), ""))
    cpu_features._proc_cpus.cache_clear()
    yield files
    cpu_features._proc_cpus.cache_clear()


def cpuinfo(cores: list[int], flags: str) -> str:
    """The text of /proc/cpuinfo for one hardware thread on each of these cores."""
    return "".join(
        f"processor\t: {thread}\nvendor_id\t: GenuineIntel\nmodel name\t: Test CPU\n"
        f"physical id\t: 0\ncore id\t\t: {core}\nflags\t\t: {flags}\n\n"
        for thread, core in enumerate(cores)
    )


def without_native(monkeypatch: pytest.MonkeyPatch, affinity: set[int]) -> CpuFeatures:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: affinity, raising=False)
    return detect_without_native()


def test_fallback_reads_cpuinfo(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    machine["/proc/cpuinfo"] = cpuinfo([0, 0, 1, 1], "fpu avx2 fma f16c avx512f amx_tile")
    cpu = without_native(monkeypatch, {0, 1, 2})
    assert (cpu.vendor, cpu.brand) == ("GenuineIntel", "Test CPU")
    assert cpu.flags == {"avx2", "fma", "f16c", "avx512f", "amx_tile"}
    assert (cpu.cores.physical, cpu.cores.logical, cpu.cores.usable) == (2, 4, 2)


def test_siblings_on_one_core_count_once(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    machine["/sys/devices/system/cpu/online"] = "0-7\n"
    for thread in range(8):
        siblings = f"{thread % 4},{thread % 4 + 4}\n"
        machine[f"/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list"] = siblings
    cores = without_native(monkeypatch, {0, 1, 4, 5}).cores
    assert (cores.physical, cores.logical, cores.usable) == (4, 8, 2)


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({"/sys/fs/cgroup/cpu.max": "max 100000\n"}, 4),
        ({"/sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"/sys/fs/cgroup/cpu.max": "900000 100000\n"}, 4),
        (
            {
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            3,
        ),
    ],
)
def test_a_container_limit_bounds_usable_cores(
    machine: dict[str, str], monkeypatch: pytest.MonkeyPatch, files: dict[str, str], usable: int
):
    machine["/proc/cpuinfo"] = cpuinfo([0, 1, 2, 3], "avx2")
    machine.update(files)
    assert without_native(monkeypatch, {0, 1, 2, 3}).cores.usable == usable


def test_no_linux_files_is_no_error(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    cpu = detect_without_native()
    assert cpu.flags == frozenset()
    assert cpu.cores.usable == cpu.cores.logical == os.cpu_count()
    assert "unknown" in cpu.describe()


@needs_native
def test_stub_and_extension_have_the_same_names():
    stub = ast.parse((Path(headrace.__file__).parent / "_native.pyi").read_text())
    in_stub = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    in_module = {name for name in vars(cpu_features._extension) if not name.startswith("__")}
    assert in_stub == in_module
