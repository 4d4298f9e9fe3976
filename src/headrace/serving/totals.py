"""What engines have counted, added up: the counts of an engine begin at 0 when it is restarted."""

from __future__ import annotations

from collections import Counter

from headrace.core.engine import EngineStats


class EngineTotals:
    """Sums over engines that replace one another, which do not fall when one is replaced."""

    def __init__(self) -> None:
        self._number: int | None = None  # of the engine that sent `now`
        self._before: Counter[str] = Counter()  # of engines that have ended
        self._of_last: Counter[str] = Counter()
        self.now: EngineStats | None = None
        """The last reply; None while there is no engine."""

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
            "output_tokens": scheduler.output_tokens,
            "preemptions": scheduler.preemptions,
            "forks": scheduler.forks,
            "retried_slices": scheduler.retried_slices,
            "block_copies": scheduler.block_copies,
            "kv_evicted_tokens": scheduler.evicted_tokens,
            "drafts": scheduler.drafts,
            "draft_tokens": scheduler.draft_tokens,
            "accepted_tokens": scheduler.accepted_tokens,
        }
    )
    counts.update({f"step_size {power}": count for power, count in enumerate(scheduler.step_sizes)})
    counts.update({f"accepted at {position}": count for position, count in enumerate(scheduler.accepted_at)})
    if cache is not None:
        counts.update({"queries": cache.queries, "hits": cache.hits, "evictions": cache.evictions})
        counts.update({"pins": cache.pins, "pins broken": cache.pins_broken})
        counts.update({f"miss {reason}": count for reason, count in cache.misses.items()})
    return counts
