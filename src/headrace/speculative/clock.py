"""What a step costs by its number of tokens, as measured while the engine runs."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

_NEW = 0.1
"""Weight of a new measurement, once there are some."""
_FIRST = 3
"""Of the first measurements the least is taken: a core that was taken away makes steps slower, and nothing faster."""
SPIKE = 1.5
"""Later measurements count for at most so many times what is known."""
_DOUBT, _SURE = 1024, 0.25
"""What a size costs more than a smaller one is doubted over so many steps without a measurement, down to this share of
it: so it is tried again."""
_LARGEST = 1024
"""Larger steps are prefill, which no draft changes."""


class _Known:
    """What is known of one size: seconds, and when it was last measured, in measurements of all sizes."""

    __slots__ = ("at", "count", "value")

    def __init__(self) -> None:
        self.count = self.at = 0
        self.value = 0.0

    def add(self, value: float, at: int) -> None:
        self.count, self.at = self.count + 1, at
        if self.count <= _FIRST:
            self.value = value if self.count == 1 else min(self.value, value)
        else:
            self.value += (min(value, SPIKE * self.value) - self.value) * _NEW


class StepClock:
    """Seconds of a step by its number of tokens, in any unit.

    Sizes that were never seen lie on the line between their neighbours, and no size costs more than a larger one. Above
    the largest one a step is taken to cost as much as that. So larger steps are tried, and their cost is then known.
    """

    def __init__(self) -> None:
        self._sizes: list[int] = []  # rising
        self._known: dict[int, _Known] = {}
        self._count = 0
        self._curve: Curve | None = None  # as of the last measurement

    def add(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        if not 0 < tokens <= _LARGEST or seconds <= 0:
            return
        if tokens not in self._known:
            bisect.insort(self._sizes, tokens)
            self._known[tokens] = _Known()
        self._count += 1
        self._known[tokens].add(seconds, self._count)
        self._curve = None

    def knows(self, tokens: int) -> bool:
        """Whether a step of this size, or a smaller one, was measured."""
        return bool(self._sizes) and self._sizes[0] <= tokens

    def curve(self) -> Curve:
        """What steps cost as far as is known now."""
        if self._curve is None:
            self._curve = self._new_curve()
        return self._curve

    def _new_curve(self) -> Curve:
        values = [self._known[size].value for size in self._sizes]
        for at in range(len(values) - 2, -1, -1):
            values[at] = min(values[at], values[at + 1])
        for at in range(1, len(values)):
            age = self._count - self._known[self._sizes[at]].at
            sure = max(_SURE, 1 - age / _DOUBT)
            values[at] = values[at - 1] + max(0.0, values[at] - values[at - 1]) * sure
        return Curve(tuple(self._sizes), values)


class Curve:
    """Seconds by the number of tokens."""

    __slots__ = ("_sizes", "_values")

    def __init__(self, sizes: Sequence[int], values: Sequence[float]) -> None:
        self._sizes, self._values = sizes, values

    def seconds(self, tokens: int) -> float | None:
        """The time of a step; None before the first measurement."""
        sizes, values = self._sizes, self._values
        if not sizes:
            return None
        at = bisect.bisect_left(sizes, tokens)
        if at == len(sizes):
            return values[-1]
        if sizes[at] == tokens or at == 0:
            return values[at]
        low, high = sizes[at - 1], sizes[at]
        return values[at - 1] + (values[at] - values[at - 1]) * (tokens - low) / (high - low)
