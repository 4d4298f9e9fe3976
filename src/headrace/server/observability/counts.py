"""Counters and histograms of a server's whole life."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from headrace.core.types import FinishReason

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


def _seconds() -> Histogram:
    return Histogram(SECONDS)


def _tokens() -> Histogram:
    return Histogram(TOKENS)


def _counts() -> Histogram:
    return Histogram(COUNTS)


@dataclass(slots=True)
class Tallies:
    """Times in seconds. `http` by (route, method, status); `finished` by finish reason, of completions."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    http: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    finished: Counter[str] = field(
        default_factory=lambda: Counter({reason.value: 0 for reason in FinishReason})
    )

    # As callers see them: from the arrival of the HTTP request on.
    ttft: Histogram = field(default_factory=_seconds)
    itl: Histogram = field(default_factory=_seconds)
    e2e: Histogram = field(default_factory=_seconds)

    # Of each prompt, on the engine's clock.
    tpot: Histogram = field(default_factory=_seconds)
    queue: Histogram = field(default_factory=_seconds)
    prefill: Histogram = field(default_factory=_seconds)
    decode: Histogram = field(default_factory=_seconds)
    inference: Histogram = field(default_factory=_seconds)

    prompt_length: Histogram = field(default_factory=_tokens)
    computed_length: Histogram = field(default_factory=_tokens)
    output_length: Histogram = field(default_factory=_tokens)
    longest_output: Histogram = field(default_factory=_tokens)
    max_tokens: Histogram = field(default_factory=_tokens)
    n: Histogram = field(default_factory=_counts)
