"""Arrivals have their distribution: Poisson, more or less bursty, of the right rate, the same for the same seed."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import pytest

from headrace.bench.measure import percentile
from headrace.errors import ConfigError
from headrace.sim.workload.arrivals import MAX_RATE, MAX_STEPS, Arrivals, parse_rates

COUNT = 20_000


def gaps(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


def is_poisson(times: Sequence[float], rate: float) -> bool:
    """Gaps of a Poisson process are exponential: quantile q is -ln(1 - q) / rate; and counts vary like their mean."""
    seen = gaps(times)
    quantiles = all(
        percentile(seen, share) == pytest.approx(-math.log(1 - share) / rate, rel=0.06)
        for share in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
    )
    per_second = [0] * (int(times[-1]) + 1)
    for time in times:
        per_second[int(time)] += 1
    spread = statistics.variance(per_second[:-1]) / statistics.mean(per_second[:-1])
    return quantiles and 0.8 < spread < 1.2


@pytest.mark.parametrize("rate", [0.5, 20.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_poisson(rate: float, seed: int) -> None:
    times = Arrivals(rate).times(COUNT, seed)
    assert times == sorted(times) and times[0] == 0
    assert COUNT / times[-1] == pytest.approx(rate, rel=0.03)
    assert is_poisson([time * rate / 20 for time in times], 20)


def test_the_check_of_poisson_notices_other_processes() -> None:
    even = [number / 20 for number in range(COUNT)]
    assert not is_poisson(even, 20)
    assert not is_poisson(Arrivals(20, burstiness=0.5).times(COUNT, 0), 20)
    assert not is_poisson(Arrivals(20, burstiness=2.0).times(COUNT, 0), 20)
    assert not is_poisson(Arrivals(20, burst=2).times(COUNT, 0), 20)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_is_the_shape_of_the_gaps(burstiness: float) -> None:
    seen = gaps(Arrivals(10, burstiness).times(COUNT, 3))
    mean, deviation = statistics.mean(seen), statistics.stdev(seen)
    assert mean == pytest.approx(0.1, rel=0.06)
    assert deviation / mean == pytest.approx(1 / math.sqrt(burstiness), rel=0.06)


def test_bursts_come_in_one_moment_and_keep_the_rate() -> None:
    times = Arrivals(10, burst=8).times(COUNT, 0)
    moments = sorted(set(times))
    assert all(times.count(moment) == 8 for moment in moments[:20])
    assert COUNT / times[-1] == pytest.approx(10, rel=0.06)
    assert len(Arrivals(10, burst=8).times(3, 0)) == 3


def test_all_at_once_and_the_same_for_a_seed() -> None:
    assert Arrivals().times(5, 0) == [0.0] * 5
    assert Arrivals(2).times(50, 7) == Arrivals(2).times(50, 7) != Arrivals(2).times(50, 8)


def test_rates_from_words() -> None:
    assert parse_rates(["2", "0.5", "inf"]) == [2.0, 0.5, math.inf]
    assert parse_rates(["1:16:4"]) == [1.0, 6.0, 11.0, 16.0]
    assert parse_rates([f"{MAX_RATE}"]) == [MAX_RATE]
    assert len(parse_rates([f"1:2:{MAX_STEPS}"])) == MAX_STEPS


@pytest.mark.parametrize(
    "word",
    ["0", "-1", "nan", "x", "", "1:2", "1:2:1", "1:2:x", "1:inf:3", "1:2:3:4", f"{MAX_RATE * 1.01}", "1e-300",
     f"1:2:{MAX_STEPS + 1}", "1:2:9999999999999"],
)  # fmt: skip
def test_words_that_are_no_rates(word: str) -> None:
    with pytest.raises(ConfigError, match="--request-rate"):
        parse_rates([word])


def test_too_many_rates() -> None:
    with pytest.raises(ConfigError, match="at most 1000 rates"):
        parse_rates(["1"] * (MAX_STEPS + 1))
