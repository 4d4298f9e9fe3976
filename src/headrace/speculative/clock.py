"""What a step costs by its number of tokens, as measured while the engine runs."""

from __future__ import annotations

import bisect

_NEW = 0.1
"""Weight of a new measurement, once there are some."""
_FIRST = 5
"""The first measurements of a size count in full: their mean is taken."""
_LARGEST = 1024
"""Larger steps are prefill, which no draft changes."""


class _Mean:
    """A mean that forgets. Single measurements far above it (another process took the core) count for less."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        if self.count > _FIRST:
            value = min(value, 3 * self.value)
        self.value += (value - self.value) * max(1 / self.count, _NEW)


class StepClock:
    """Seconds of a step by its number of tokens, in any unit.

    Sizes that were never seen lie on the line between their neighbours. Above the largest one a step is taken to cost
    as much as that: so larger steps are tried, and what they cost is then known.
    """

    def __init__(self) -> None:
        self._sizes: list[int] = []  # rising
        self._seconds: dict[int, _Mean] = {}

    def add(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        if not 0 < tokens <= _LARGEST or seconds <= 0:
            return
        if tokens not in self._seconds:
            bisect.insort(self._sizes, tokens)
            self._seconds[tokens] = _Mean()
        self._seconds[tokens].add(seconds)

    def knows(self, tokens: int) -> bool:
        """Whether a step of this size, or a smaller one, was measured."""
        return bool(self._sizes) and self._sizes[0] <= tokens

    def seconds(self, tokens: int) -> float | None:
        """The time of a step; None before the first measurement. Never falls as `tokens` grow from a known size on."""
        if not self._sizes:
            return None
        at = bisect.bisect_left(self._sizes, tokens)
        if at == len(self._sizes):
            return self._seconds[self._sizes[-1]].value
        high = self._sizes[at]
        if high == tokens or at == 0:
            return self._seconds[high].value
        low = self._sizes[at - 1]
        one, other = self._seconds[low].value, self._seconds[high].value
        return one + (max(one, other) - one) * (tokens - low) / (high - low)
