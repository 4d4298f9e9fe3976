"""How long simulated steps take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.core.types import StepPlan
from headrace.sim.cost import CostModel
from headrace.sim.work import SliceShape, StepShape

_LINEAR = 1e-9
"""Relative distance from a straight line up to which times of steps count as lying on it."""
_SHORT = 8


class StepTimes(Protocol):
    """Seconds of steps, a function of what is computed in them."""

    def plan_s(self, plan: StepPlan) -> float:
        """The time of one step."""
        ...

    def steady_s(self, batch: int, keys: int, steps: int) -> Sequence[float]:
        """The times of `steps` steps in a row, each of which decodes one token for each of `batch` sequences. In the
        first one they hold `keys` tokens together, the new ones included, in the next one `keys + batch`."""
        ...


class CostTimes:
    """Times by a cost model. Those of steps in a row lie on few straight lines, of which some points are priced.

    budget: tokens that stay where KV tokens are evicted.
    """

    def __init__(self, cost: CostModel, budget: int = 0) -> None:
        self._cost, self._budget = cost, budget
        # By batch and bits of the number of keys.
        self._lines: dict[tuple[int, int], tuple[float, float] | None] = {}

    def plan_s(self, plan: StepPlan) -> float:
        return self._cost.mixed_s(*self._parts(plan)) + self._evicting_s(plan)

    def _evicting_s(self, plan: StepPlan) -> float:
        """Of queries that decide which tokens stay, and of moving these."""
        total = 0.0
        for work in plan.slices:
            if work.observation is not None:
                held = work.start + len(work.tokens) - work.evicted
                kept = self._budget if work.observation.targets else 0
                total += self._cost.evicting_s(work.observation.rows, held, kept)
        return total

    @staticmethod
    def _parts(plan: StepPlan) -> tuple[int, int, StepShape]:
        """(sequences that decode, their keys, prompts)."""
        batch = keys = 0
        prompts = []
        for work in plan.slices:
            count = len(work.tokens)
            if count == 1 and work.sample:
                batch += 1
                keys += work.start + 1 - work.evicted
            else:
                prompts.append(
                    SliceShape(count, work.start - work.evicted, 1 + work.num_draft if work.sample else 0)
                )
        return batch, keys, tuple(prompts)

    def steady_s(self, batch: int, keys: int, steps: int) -> Sequence[float]:
        end, bits = keys + batch * steps, keys.bit_length()
        line = self._line(batch, bits) if end.bit_length() == bits else None
        if line is None:
            return on_lines(lambda step: self._cost.decoding_s(batch, keys + batch * step), steps)
        fixed, each = line
        return [fixed + each * seen for seen in range(keys, end, batch)]

    def _line(self, batch: int, bits: int) -> tuple[float, float] | None:
        """(fixed, each): seconds of a step by its number of keys, as long as that has so many bits; None where the
        times do not lie on one line."""
        if (batch, bits) not in self._lines:
            first, last = 1 << bits - 1, 1 << bits
            start_s = self._cost.decoding_s(batch, first)
            each = (self._cost.decoding_s(batch, last) - start_s) / (last - first)
            straight = all(
                abs(start_s + each * (keys - first) - self._cost.decoding_s(batch, keys)) <= _LINEAR * start_s
                for keys in (first + (last - first) * part // 6 for part in range(1, 6))
            )
            self._lines[batch, bits] = (start_s - each * first, each) if straight else None
        return self._lines[batch, bits]


class MeteredTimes(CostTimes):
    """The same, and what prompts take of it: `prompts_s` adds up by how much they make their steps longer."""

    prompts_s = 0.0

    def plan_s(self, plan: StepPlan) -> float:
        batch, keys, prompts = self._parts(plan)
        whole = self._cost.mixed_s(batch, keys, prompts)
        others = tuple(part for part in prompts if part.logits > 1)  # drafts that are verified
        if len(others) < len(prompts):
            self.prompts_s += whole - (self._cost.mixed_s(batch, keys, others) if batch or others else 0.0)
        return whole + self._evicting_s(plan)


def on_lines(price: Callable[[int], float], steps: int) -> list[float]:
    """`price(step)` of every step, computed for few of them: a stretch whose thirds lie on a straight line is one."""
    found: list[float] = []
    stretches = [(0, steps)]
    while stretches:
        first, end = stretches.pop()
        last = end - 1
        if end - first <= _SHORT:
            found += [price(step) for step in range(first, end)]
            continue
        start_s, slope = price(first), (price(last) - price(first)) / (last - first)
        if all(
            abs(start_s + slope * (step - first) - price(step)) <= _LINEAR * start_s
            for step in (first + (last - first) // 3, last - (last - first) // 3)
        ):
            found += [start_s + slope * step for step in range(end - first)]
        else:
            middle = (first + end) // 2
            stretches += [(middle, end), (first, middle)]
    return found
