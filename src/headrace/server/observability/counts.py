"""What a server counts: totals and histograms since its start, percentiles of the last minute, event loop lag."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from itertools import accumulate

from headrace.core.engine import EngineStats
from headrace.core.types import FinishReason
from headrace.errors import HeadraceError
from headrace.serving.client.base import AsyncClient
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

ENGINE_PATIENCE_S = 1.0
"""Time for the engine's reply, which it sends between two steps; after it the last reply is used."""

LAG_INTERVAL_S = 0.05
LONGEST_LAG_S = 60.0
"""Longer gaps, such as a suspended machine, count once."""


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


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int]]:
    """As `Histogram.buckets`; there is one more count than bounds."""
    names = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))


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


class LoopLag:
    """Ticks at fixed times, and records how late each tick runs.

    Ticks that fall into a stall are recorded with the lag that each would have had, so that the share of samples
    above a bound is the share of time, and one long stall does not count as one late tick.
    """

    def __init__(self, interval_s: float = LAG_INTERVAL_S, clock: Clock = MONOTONIC) -> None:
        self.histogram = Histogram(SECONDS)
        self._interval_s = interval_s
        self._clock = clock

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        due = self._clock()
        while True:
            due += self._interval_s
            wait_s = due - self._clock()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            due = self.note(due)

    def note(self, due: float) -> float:
        """Record the ticks that are due now, the first of them at `due`; returns the time of the last one."""
        now = self._clock()
        if now - due > LONGEST_LAG_S:
            self.histogram.observe(now - due)
            return now
        self.histogram.observe(max(0.0, now - due))
        while due + self._interval_s <= now:
            due += self._interval_s
            self.histogram.observe(now - due)
        return due


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


class EngineTotals:
    """Sums over all engines of a server, which do not fall when one is replaced.

    What an engine counted between the last `poll` and its unexpected end is lost.
    """

    def __init__(self, client: AsyncClient, patience_s: float = ENGINE_PATIENCE_S) -> None:
        self._client = client
        self._patience_s = patience_s
        self._number: int | None = None  # of the engine that sent `now`
        self._before: Counter[str] = Counter()  # of engines that have ended
        self._of_last: Counter[str] = Counter()
        self.now: EngineStats | None = None
        """The last reply; None while there is no engine."""

    async def poll(self) -> None:
        """Ask the engine."""
        number = self._client.restarts
        try:
            stats = await asyncio.wait_for(self._client.stats(), self._patience_s)
        except TimeoutError:
            return
        except HeadraceError:
            self.now = None
            return
        if number == self._client.restarts:
            self.take(number, stats)

    def take(self, number: int, stats: EngineStats) -> None:
        """The reply of engine `number`, counted from 0."""
        counts = _engine_counts(stats)
        if self._number is not None and number != self._number:
            self._before.update(self._of_last)
        elif any(counts[name] < count for name, count in self._of_last.items()):
            return  # replies may arrive out of order
        self._number, self._of_last, self.now = number, counts, stats

    def __getitem__(self, name: str) -> int:
        """A sum by its name in `_engine_counts`."""
        return self._before[name] + self._of_last[name]

    def under(self, prefix: str) -> dict[str, int]:
        """Sums whose name begins with `prefix`, by the rest of the name."""
        names = sorted({*self._before, *self._of_last})
        return {name.removeprefix(prefix): self[name] for name in names if name.startswith(prefix)}


def _engine_counts(stats: EngineStats) -> Counter[str]:
    scheduler, cache = stats.scheduler, stats.cache
    counts = Counter(
        {
            "steps": scheduler.steps,
            "scheduled_tokens": scheduler.scheduled_tokens,
            "preemptions": scheduler.preemptions,
            "forks": scheduler.forks,
            "retried_slices": scheduler.retried_slices,
            "block_copies": scheduler.block_copies,
        }
    )
    counts.update({f"step_size {power}": count for power, count in enumerate(scheduler.step_sizes)})
    if cache is not None:
        counts.update({"queries": cache.queries, "hits": cache.hits, "evictions": cache.evictions})
        counts.update({"pins": cache.pins, "pins broken": cache.pins_broken})
        counts.update({f"miss {reason}": count for reason, count in cache.misses.items()})
    return counts
