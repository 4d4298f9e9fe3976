"""Machines made up for the tests."""

from __future__ import annotations

from dataclasses import replace

from headrace.plan.hardware import Hardware, Machine
from headrace.plan.units import GIB

SLOW = Hardware(
    "this",
    "two cores",
    "cpu",
    24 * GIB,
    20e9,
    (("f32", 2e11), ("bf16", 4e11), ("i8", 8e11)),
    "made up",
    cores=2,
)
FAST = replace(SLOW, bandwidth=400e9, peak=(("f32", 2e13), ("bf16", 4e13), ("i8", 8e13)))
WIDE = replace(SLOW, peak=FAST.peak)
"""Much compute for its bandwidth: verifying drafts is free."""


def machine_of(hardware: Hardware, native: bool = True) -> Machine:
    """The machine with this data sheet, which runs the kernels of AVX-512."""
    flags = frozenset({"avx512f", "avx512_bf16", "avx512_vnni", "avx2"})
    kernels = ("avx512", "avx2", "portable") if native else ()
    return Machine("cpu", hardware.title, hardware.memory, hardware.memory, hardware.cores, flags, kernels)
