"""A cost model that is corrected by what steps really took, while the engine runs.

One ratio of measured to predicted time is kept for each kind of step: steps that only decode, steps with prompts beside
sequences that decode, and steps of prompts alone. So a profile that is wrong by a factor, or a machine that others use
too, costs a few steps. Pricing and observing a step take some microseconds.
"""

from __future__ import annotations

from headrace.core.types import StepPlan
from headrace.sim.cost import CostModel
from headrace.sim.work import SliceShape

DECODE, MIXED, PREFILL = "decode", "mixed", "prefill"
_FIRST = 3
"""Of the first measurements the least is taken: other programs make steps slower, and nothing faster."""
_NEW = 0.1
"""Weight of a later measurement."""
_SPIKE = 1.5
"""Later measurements count for at most so many times what is known."""
_SIZES = 4096
"""Most sizes of steps whose price is kept."""


class _Ratio:
    """Measured over predicted time of one kind of step."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count, self.value = 0, 1.0

    def add(self, ratio: float) -> None:
        self.count += 1
        if self.count <= _FIRST:
            self.value = ratio if self.count == 1 else min(self.value, ratio)
        else:
            self.value += (min(ratio, _SPIKE * self.value) - self.value) * _NEW


class OnlineCost:
    """Prices steps by their sums: `rows` tokens of sequences that decode and hold `keys` tokens together, and
    `prompt` tokens of prompts. Where prompts start is not counted: the ratios take it in."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self._ratios = {DECODE: _Ratio(), MIXED: _Ratio(), PREFILL: _Ratio()}
        self._by_tokens: dict[int, float] = {}

    def step_s(self, rows: int, keys: int, prompt: int) -> float:
        """Seconds of a step, corrected."""
        return self._raw(rows, keys, prompt) * self.ratio(_kind(rows, prompt))

    def tokens_s(self, tokens: int) -> float:
        """Uncorrected seconds of a step with so many tokens of one prompt."""
        known = self._by_tokens.get(tokens)
        if known is None:
            if len(self._by_tokens) >= _SIZES:
                self._by_tokens.clear()
            known = self._by_tokens[tokens] = (
                self.model.step_s((SliceShape(tokens, 0, 1),)) if tokens else 0.0
            )
        return known

    def ratio(self, kind: str) -> float:
        """Measured over predicted time; of a kind that was never measured, that of another one."""
        own = self._ratios[kind]
        if own.count:
            return own.value
        return next((other.value for other in self._ratios.values() if other.count), 1.0)

    def observe(self, rows: int, keys: int, prompt: int, seconds: float) -> None:
        """A step took so long."""
        predicted = self._raw(rows, keys, prompt)
        if predicted > 0 and seconds > 0:
            self._ratios[_kind(rows, prompt)].add(seconds / predicted)

    def _raw(self, rows: int, keys: int, prompt: int) -> float:
        if not rows:
            return self.tokens_s(prompt)
        decode = self.model.decoding_s(rows, max(keys, rows))
        return decode + self.tokens_s(rows + prompt) - self.tokens_s(rows) if prompt else decode


def sums(plan: StepPlan) -> tuple[int, int, int]:
    """(rows, keys, prompt) of a plan, as `OnlineCost` takes them."""
    rows = keys = prompt = 0
    for work in plan.slices:
        count = len(work.tokens)
        if work.sample and count == 1 + work.num_draft:
            rows += count
            keys += work.start + 1 - work.evicted
        else:
            prompt += count
    return rows, keys, prompt


def _kind(rows: int, prompt: int) -> str:
    return PREFILL if not rows else MIXED if prompt else DECODE


class SizeTimes:
    """Seconds of steps by their number of tokens, one mean for each power of two, and the line through them."""

    def __init__(self) -> None:
        self._means: dict[int, tuple[int, float, float]] = {}  # class of sizes -> (count, tokens, seconds)

    def add(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        if tokens <= 0 or seconds <= 0:
            return
        size = tokens.bit_length()
        count, mean, known = self._means.get(size, (0, float(tokens), seconds))
        new = 1 / (count + 1) if count < _FIRST else _NEW
        taken = min(seconds, _SPIKE * known * max(1.0, tokens / mean))
        self._means[size] = (count + 1, mean + (tokens - mean) * new, known + (taken - known) * new)

    def line(self) -> tuple[float, float] | None:
        """(seconds of a step, seconds of a token more), by least relative squares; None until steps of a size and of
        four times that have been measured."""
        points = [(tokens, seconds) for _, tokens, seconds in self._means.values()]
        if not points or max(points)[0] < 4 * min(points)[0]:
            return None
        # With weights 1 / seconds^2, so that each size counts by its relative error.
        w, wx, wxx, wy, wxy = (
            sum(tokens**power / seconds**of for tokens, seconds in points)
            for power, of in ((0, 2), (1, 2), (2, 2), (0, 1), (1, 1))
        )
        each = (w * wxy - wx * wy) / (w * wxx - wx * wx)
        fixed = (wy - each * wx) / w
        return (fixed, each) if fixed > 0 and each > 0 else None
