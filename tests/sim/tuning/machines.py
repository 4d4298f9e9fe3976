"""Machines made up for the tests."""

from __future__ import annotations

from dataclasses import replace

from headrace.plan.hardware import Hardware
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
