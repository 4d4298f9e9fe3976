"""The limits of the machine: measured ones are sane, and what follows from them is right on numbers made by hand."""

from __future__ import annotations

import pytest

from tests import needs
from tests.instruction_sets import parameters

_native = needs.native()

from headrace.bench.native.roofline import (  # noqa: E402
    BUFFER_BYTES,
    PRODUCTS,
    Measurement,
    Roofline,
    buffer_bytes,
    measure_roofline,
)
from headrace.plan.units import GIB, MIB  # noqa: E402
from headrace.sim.work import Work  # noqa: E402


def by_hand(read: float = 10e9, **peaks: float) -> Roofline:
    one = Measurement(best=read, median=read / 2)
    half = Measurement(best=read / 2, median=read / 4)
    return Roofline(
        "made", 2, MIB, one, half, {name: Measurement(peak, peak) for name, peak in peaks.items()}
    )


def test_the_slower_of_memory_and_products_is_the_limit() -> None:
    roofline = by_hand(10e9, f32=1e9, i8=4e9)
    reading = roofline.limit(Work(20e9, {"f32": 1e9}))
    assert (reading.memory_s, reading.compute_s) == (2.0, 1.0)
    assert reading.seconds == 2.0 and reading.bound == "memory"
    multiplying = roofline.limit(Work(20e9, {"f32": 2e9, "i8": 6e9}))
    assert multiplying.compute_s == 3.5 and multiplying.seconds == 3.5 and multiplying.bound == "compute"
    with pytest.raises(KeyError):
        roofline.limit(Work(0, {"bf16": 1.0}))


def test_work_adds_up_by_type() -> None:
    work = Work(1, {"f32": 2, "i8": 3}) + Work(10, {"i8": 30, "bf16": 5}).times(2)
    assert work.bytes == 21 and work.operations == {"f32": 2, "i8": 63, "bf16": 10}
    assert work.all_operations == 75


def test_the_buffer_is_far_larger_than_the_cache_and_far_smaller_than_memory() -> None:
    assert buffer_bytes(32 * MIB, 20 * GIB) == BUFFER_BYTES
    assert buffer_bytes(300 * MIB, 64 * GIB) == 1200 * MIB
    assert buffer_bytes(300 * MIB, GIB) == 128 * MIB


def test_the_measured_roofline_is_sane() -> None:
    roofline = measure_roofline()
    assert roofline is not None and roofline.kernels == _native.available_kernels()[0]
    assert 0.1e9 < roofline.read.median <= roofline.read.best < 10e12
    assert roofline.read_one.best > 0
    assert set(roofline.peaks) == set(PRODUCTS)
    for peak in roofline.peaks.values():
        assert 1e8 < peak.median <= peak.best < 1e15
    assert measure_roofline() is roofline  # measured once a process
    data = roofline.to_json()
    assert data["read_bytes_per_s"]["best"] == roofline.read.best
    assert "GB/s" in roofline.describe()


@pytest.mark.parametrize("kernels", parameters())
def test_every_instruction_set_has_a_peak(kernels: str) -> None:
    for product in PRODUCTS:
        runs = _native.measure_peak(kernels, product, threads=1, seconds=0.001, runs=3)
        assert len(runs) == 3 and min(runs) > 1e6
    speeds = _native.measure_read(kernels, threads=2, buffer_bytes=MIB + 1, runs=2)
    assert len(speeds) == 2 * 16 and min(speeds) > 1e6


@pytest.mark.needs_isa("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
def test_wide_vectors_beat_plain_code_and_small_types_beat_wide_ones() -> None:
    """Peaks that the compiler had folded away, or that did half the work, would break these ratios."""

    def best(kernels: str, product: str) -> float:
        return max(_native.measure_peak(kernels, product, threads=1, seconds=0.001, runs=40))

    assert best("avx512_vnni", "f32") > 2 * best("portable", "f32")
    assert 2 < best("avx512_vnni", "i8") / best("avx512_vnni", "f32") < 8


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="no kernels named"):
        measure_roofline("none")
    with pytest.raises(ValueError, match="no product of type"):
        _native.measure_peak("portable", "f16", threads=1, seconds=0.01, runs=1)
    with pytest.raises(ValueError, match="threads"):
        _native.measure_read("portable", threads=0, buffer_bytes=MIB, runs=1)
    with pytest.raises(ValueError, match="seconds"):
        _native.measure_peak("portable", "f32", threads=1, seconds=float("nan"), runs=1)
