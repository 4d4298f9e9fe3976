"""What the engines of a server have counted: sums over all of them, which do not fall when one is replaced."""

from __future__ import annotations

import asyncio
from collections import Counter

from headrace.core.engine import EngineStats
from headrace.errors import HeadraceError
from headrace.serving.client.base import AsyncClient

PATIENCE_S = 1.0
"""How long an engine may take to answer, between two steps, before its last answer has to do."""


class EngineTotals:
    """Of an engine that ended by itself, what it counted after the last `look` is lost."""

    def __init__(self, client: AsyncClient, patience_s: float = PATIENCE_S) -> None:
        self._client = client
        self._patience_s = patience_s
        self._number: int | None = None  # of the engine that `now` came from
        self._before: Counter[str] = Counter()  # of engines that have ended
        self._of_last: Counter[str] = Counter()
        self.now: EngineStats | None = None
        """The engine as it was last seen; None while there is none."""

    async def look(self) -> None:
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
        """The engine that was started as number `number`, counted from 0, says this of itself."""
        counts = _counts(stats)
        if self._number is not None and number != self._number:
            self._before.update(self._of_last)
        elif any(counts[name] < count for name, count in self._of_last.items()):
            return  # answers may overtake each other
        self._number, self._of_last, self.now = number, counts, stats

    def __getitem__(self, name: str) -> int:
        """A sum; the names are those of `_counts`."""
        return self._before[name] + self._of_last[name]

    def under(self, prefix: str) -> dict[str, int]:
        """Sums whose name begins so, by the rest of their name."""
        names = sorted({*self._before, *self._of_last})
        return {name.removeprefix(prefix): self[name] for name in names if name.startswith(prefix)}


def _counts(stats: EngineStats) -> Counter[str]:
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
