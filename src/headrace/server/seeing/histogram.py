"""Counts of values by size, cheap enough for every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip
"""Bounds for times: from a token of a small model to a prompt of a large one."""

TOKENS = tuple(float(2**power) for power in range(0, 22))
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Histogram:
    """`bounds` rise; a value belongs to the first bound that is not below it. Not for several threads."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0
        """The sum of all values."""

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, int]]:
        """(bound, values up to it), the last one without a bound: as Prometheus wants them."""
        return cumulative(self._bounds, self._counts)


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int]]:
    """As `Histogram.buckets`, of counts that are one longer than the bounds."""
    names = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
