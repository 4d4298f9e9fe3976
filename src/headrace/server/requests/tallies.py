"""What requests add up to: totals and histograms since the server's start, percentiles of the last minute."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence

from headrace.core.types import FinishReason
from headrace.serving.metrics import cumulative
from headrace.serving.system import MONOTONIC, Clock

SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip
"""Bounds for times, from a token of a small model to a prompt of a large one."""

TOKENS = tuple(float(2**power) for power in range(0, 22))
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

WINDOW_S = 60.0
MAX_SAMPLES = 4096
"""Samples that a window keeps; at a high rate it covers less time."""


class Histogram:
    """`bounds` are ascending; a value belongs to the first bound that is not below it. Not thread-safe."""

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
        """(bound, values up to it), the last one without a bound, as in Prometheus."""
        return cumulative(self._bounds, self._counts)


class Window:
    """Samples of the last minute, in seconds."""

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)

    def add(self, now: float, value: float) -> None:
        self._samples.append((now, value))

    def percentiles(self) -> dict[str, float | None]:
        """`count`, and p50, p90 and p99 by nearest rank; None without a sample."""
        samples, begin = self._samples, self._clock() - WINDOW_S
        while samples and samples[0][0] < begin:
            samples.popleft()
        values = sorted(value for _, value in samples)
        found: dict[str, float | None] = {"count": len(values)}
        for percent in (50, 90, 99):
            rank = max(0, math.ceil(percent / 100 * len(values)) - 1)
            found[f"p{percent}"] = values[rank] if values else None
        return found


class Tallies:
    """What requests add up to. See `metrics` for what each count means."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.http: Counter[tuple[str, str, str]] = Counter()
        """(route, method, status) of every request that has ended."""
        self.finished: Counter[str] = Counter({reason.value: 0 for reason in FinishReason})

        # As callers see them: from the arrival of the HTTP request. Windows have the samples of streams alone.
        self.ttft, self.itl, self.e2e = (Histogram(SECONDS) for _ in range(3))
        self.recent_ttft, self.recent_itl = Window(), Window()

        # Of each prompt, by the engine's clock.
        self.tpot, self.queue, self.prefill, self.decode, self.inference = (
            Histogram(SECONDS) for _ in range(5)
        )

        self.prompt_length, self.computed_length = Histogram(TOKENS), Histogram(TOKENS)
        self.output_length, self.longest_output = Histogram(TOKENS), Histogram(TOKENS)
        self.max_tokens, self.n = Histogram(TOKENS), Histogram(COUNTS)
