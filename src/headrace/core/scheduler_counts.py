"""What the scheduler counts: steps by their size, tokens, preemptions, and how many drafted tokens were accepted."""

from __future__ import annotations

from dataclasses import dataclass, replace

STEP_SIZES = 32
"""Classes of steps by their tokens: up to 1, 2, 4, 8, and so on; the last one has no upper bound."""


@dataclass(slots=True)
class SchedulerStats:
    """Counts since the start. `step_sizes`: steps by the class of their size, see STEP_SIZES. `drafts`: chains
    of drafted tokens, or trees of them; `accepted_at[d]`: those of which more than d tokens were accepted."""

    steps: int = 0
    scheduled_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    forks: int = 0  # sequences that shared a whole prompt
    retried_slices: int = 0  # their results were discarded, as they had read what a failed slice was to write
    block_copies: int = 0
    step_sizes: tuple[int, ...] = ()
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()
    evicted_tokens: int = 0  # of sequences, each counted once for all layers and heads


class SchedulerCounts:
    """Counts up; `stats` has what is one number each."""

    def __init__(self, max_draft: int) -> None:
        self.stats = SchedulerStats()
        self._step_sizes = [0] * STEP_SIZES
        self._accepted_at = [0] * max_draft

    def snapshot(self) -> SchedulerStats:
        """A copy of what was counted so far."""
        return replace(self.stats, step_sizes=tuple(self._step_sizes), accepted_at=tuple(self._accepted_at))

    def steps(self, steps: int, tokens: int) -> None:
        """Count steps of so many tokens each."""
        self.stats.steps += steps
        self.stats.scheduled_tokens += steps * tokens
        self._step_sizes[min((tokens - 1).bit_length(), STEP_SIZES - 1)] += steps

    def draft(self, drafted: int, accepted: int) -> None:
        """Count a draft of so many tokens."""
        self.stats.drafts += 1
        self.stats.draft_tokens += drafted
        self.stats.accepted_tokens += accepted
        for position in range(min(accepted, len(self._accepted_at))):
            self._accepted_at[position] += 1
