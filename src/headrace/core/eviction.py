"""Eviction of keys and values: when a sequence gives tokens up, and which slices that asks for.

Once a prompt longer than the budget is computed, every KV head keeps `budget` tokens of it: the first, the last, and
those that the last queries of the prompt attend to most (SnapKV, Li et al. 2024). While the sequence generates, the
same happens again each time the cache has grown by `interval` tokens. Answers are not those of the whole cache.

The points at which this happens, and the queries that decide, depend on the lengths of the prompt and of the sequence
alone: so a sequence that is computed again after a preemption, or in other chunks, keeps the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Eviction:
    """All in tokens. After each point a KV head has `budget` tokens: the first `sinks`, the last `recent`, and between
    them those that the queries of the last `window` tokens before the point attend to most."""

    budget: int
    window: int
    sinks: int
    recent: int
    interval: int

    @property
    def most_tokens(self) -> int:
        """The most tokens of a sequence that the cache holds while it generates."""
        return self.budget + self.interval

    def most_within(self, length: int) -> int:
        """`most_tokens` where no sequence is longer than `length`."""
        return min(self.most_tokens, length)

    def next_point(self, num_prompt: int, computed: int) -> int:
        """The first length above `computed` tokens at which tokens are evicted."""
        if num_prompt > self.budget:
            after = computed - num_prompt
            return num_prompt if after < 0 else num_prompt + (after // self.interval + 1) * self.interval
        return self.budget + max(1, (computed - self.budget) // self.interval + 1) * self.interval

    def reusable(self, num_prompt: int) -> int:
        """So many tokens can be taken from the prefix cache: the queries after them decide what stays, and must be
        computed."""
        return self.next_point(num_prompt, 0) - self.window

    def grant(self, num_prompt: int, computed: int, count: int) -> int:
        """Of `count` tokens to compute next, those that one slice may have: it ends at a point, or before it. The
        queries that decide about a prompt come in one slice. 0 where there are too few."""
        point = self.next_point(num_prompt, computed)
        first = point - self.window
        count = min(count, point - computed)
        if point == num_prompt and first < computed + count < point:
            return max(0, first - computed)
        return count

    def observed(self, num_prompt: int, start: int, end: int) -> tuple[int, bool]:
        """Of a slice of the tokens start … end - 1, how many of the last ones decide, and whether the first that
        decides is among them."""
        first = self.next_point(num_prompt, start) - self.window
        return max(0, end - max(start, first)), start <= first
