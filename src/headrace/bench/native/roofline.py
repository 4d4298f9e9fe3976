"""The peak memory and compute rates of this machine, measured, and the lower bound of a piece of work's time.

The roofline model of Williams, Waterman and Patterson (2009): work that reads `bytes` from memory and does `operations`
takes at least as long as the slower of the two.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from headrace.ops.cpu_features import detect
from headrace.ops.native_sources import check_sources
from headrace.plan.hardware import this_machine
from headrace.plan.units import MIB
from headrace.sim.work import Limit, Work

_native: ModuleType | None
try:
    from headrace import _native
except ImportError:
    _native = None

PRODUCTS: tuple[str, ...] = ("f32", "bf16", "i8")
"""Types of factors in a product; sums are f32, for i8 whole numbers."""

BUFFER_BYTES = 256 * MIB
CACHES_OVER = 4
"""The buffer is at least so many times the last-level cache: almost nothing of a pass is cached for the next."""
MOST_OF_MEMORY = 8
"""The buffer takes at most the available memory divided by this."""
READ_RUNS, PEAK_RUNS = 9, 100
QUICK_READ_RUNS, QUICK_PEAK_RUNS = 3, 40
PEAK_SECONDS = 0.0005
"""Many short runs: on a shared machine, some of them are undisturbed."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Several short runs, in bytes or operations a second. `best` is the limit: slower runs
    were disturbed by other processes."""

    best: float
    median: float

    @classmethod
    def of(cls, runs: list[float]) -> Measurement:
        return cls(max(runs), statistics.median(runs))

    def or_faster(self, other: Measurement) -> Measurement:
        """The measurement that was disturbed less."""
        return max(self, other, key=lambda one: one.best)

    def to_json(self) -> dict[str, float]:
        return {"best": self.best, "median": self.median}


@dataclass(frozen=True, slots=True)
class Roofline:
    """The limits of one instruction set on this machine.

    read: bytes a second by all threads from memory; read_one: by one thread alone.
    peaks: operations a second by all threads, for each type that the set multiplies.
    """

    kernels: str
    threads: int
    buffer_bytes: int
    read: Measurement
    read_one: Measurement
    peaks: Mapping[str, Measurement]

    def limit(self, work: Work) -> Limit:
        """The lower bound of the time of the work. Raises KeyError for a type of product that was not measured."""
        compute = sum(number / self.peaks[name].best for name, number in work.operations.items())
        return Limit(work.bytes / max(self.read.best, self.read_one.best), compute)

    def or_faster(self, other: Roofline) -> Roofline:
        """The higher of each limit, from two measurements that other programs disturbed in different places."""
        return replace(
            self,
            read=self.read.or_faster(other.read),
            read_one=self.read_one.or_faster(other.read_one),
            peaks={name: peak.or_faster(other.peaks[name]) for name, peak in self.peaks.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Bytes and operations a second, best and median of the runs."""
        return {
            "kernels": self.kernels,
            "threads": self.threads,
            "buffer_bytes": self.buffer_bytes,
            "read_bytes_per_s": self.read.to_json(),
            "read_one_thread_bytes_per_s": self.read_one.to_json(),
            "peak_operations_per_s": {name: peak.to_json() for name, peak in self.peaks.items()},
        }

    def describe(self) -> str:
        """One line for people."""
        peaks = ", ".join(f"{name} {peak.best / 1e9:,.0f}" for name, peak in self.peaks.items())
        return (
            f"roofline ({self.kernels}, {self.threads} threads): reads {self.read.best / 1e9:.1f} GB/s "
            f"({self.read_one.best / 1e9:.1f} by one thread), products in GFLOP/s: {peaks}"
        )


def native_module() -> ModuleType | None:
    """headrace._native, or None where it could not be built. Raises ConfigError where it is of other sources."""
    if _native is not None:
        check_sources()
    return _native


def kernel_names() -> tuple[str, ...]:
    """Instruction sets of the native kernels that run here, best first; none where the kernels are missing."""
    return () if _native is None else tuple(_native.available_kernels())


def measure_roofline(
    kernels: str | None = None, threads: int | None = None, *, quick: bool = False
) -> Roofline | None:
    """Measure this machine's limits, in about two seconds, or one where `quick`; once a process for the same arguments.

    `kernels` names the instruction set, the best that runs here if None; `threads` is every usable core if None.
    None without the native kernels. Raises ValueError for kernels that do not run here.
    """
    if _native is None:
        return None
    cores = detect().cores
    return _measured(kernels or kernel_names()[0], min(threads or cores.usable, cores.logical), quick)


@functools.cache
def _measured(kernels: str, threads: int, quick: bool) -> Roofline:
    assert _native is not None
    read_runs, peak_runs = (QUICK_READ_RUNS, QUICK_PEAK_RUNS) if quick else (READ_RUNS, PEAK_RUNS)
    size = buffer_bytes(detect().caches.l3 or 0, this_machine().memory_available)
    reads = {
        count: Measurement.of(_native.measure_read(kernels, threads=count, buffer_bytes=size, runs=read_runs))
        for count in {threads, 1}
    }
    peaks = {
        name: Measurement.of(runs)
        for name in PRODUCTS
        if (
            runs := _native.measure_peak(kernels, name, threads=threads, seconds=PEAK_SECONDS, runs=peak_runs)
        )
    }
    return Roofline(kernels, threads, size, reads[threads], reads[1], peaks)


def buffer_bytes(last_level_cache: int, memory_available: int) -> int:
    """Size of the buffer to read: several times the cache, bounded by available memory."""
    size = max(BUFFER_BYTES, CACHES_OVER * last_level_cache)
    return max(MIB, min(size, memory_available // MOST_OF_MEMORY))
