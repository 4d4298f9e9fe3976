"""How long a step may be expected to take, by how long the steps before it took.

A step takes so long for each token, for each pair of a query and a key that it may look at, and for each position whose
log-probabilities are asked for; how long, nobody knows. But whatever the three prices are, a step that has at most k
times as much of everything takes at most k times as long. So each step that was measured bounds the next one, and no
model of the machine is needed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headrace.core.types import StepPlan
from headrace.serving.system import MONOTONIC, Clock

_REMEMBERED = 16
"""Steps that are looked back at; one of many tokens says little more than its neighbours."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes: `pairs` of a query and a key, windows left aside; `scored` positions of prompts."""

    tokens: int
    pairs: int
    scored: int = 0

    def times(self, other: Work) -> float | None:
        """The smallest k of at least 1 for which this is at most k times the other in everything; None without one."""
        if self.scored and not other.scored:
            return None
        ratios = [self.tokens / other.tokens, self.pairs / other.pairs]
        if self.scored:
            ratios.append(self.scored / other.scored)
        return max(1.0, *ratios)  # what a step costs that does nothing does not shrink with it


class WorkCounter:
    """Counts the work of step plans; it must see each, because a plan does not say again what it has said once."""

    def __init__(self) -> None:
        self._scored: set[int] = set()  # sequences whose prompt gets log-probabilities

    def count(self, plan: StepPlan) -> Work:
        """The work of the next plan."""
        self._scored.difference_update(plan.released)
        tokens = pairs = scored = 0
        for work in plan.slices:
            count = len(work.tokens)
            tokens += count
            pairs += count * work.start + count * (count + 1) // 2
            if work.new is not None and work.new.params.prompt_logprobs is not None:
                self._scored.add(work.request_id)
            if work.request_id in self._scored:
                scored += count  # too many where the prompt has ended: a token a step, as good as none
        return Work(tokens, pairs, scored)


class StepTimes:
    """Measures steps between `begin` and `end`. The caller leaves out steps that are too small to tell anything."""

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._measured: deque[tuple[Work, float]] = deque(maxlen=_REMEMBERED)
        self._running: tuple[Work, float] | None = None

    def begin(self, work: Work) -> float | None:
        """A step begins. Gives the seconds that it takes at most at the speed of late; None where that is not known."""
        self._running = work, self._clock()
        return self._bound(work)

    def end(self) -> None:
        """The step that has begun, if one has, is done."""
        if self._running is None:
            return
        work, since = self._running
        self._running = None
        seconds = self._clock() - since
        bound = self._bound(work)
        if bound is not None and seconds > bound:
            self._measured.clear()  # the machine has become slower: what was before is no measure any more
        self._measured.append((work, seconds))

    def _bound(self, work: Work) -> float | None:
        bounds = [
            seconds * times for other, seconds in self._measured if (times := work.times(other)) is not None
        ]
        return min(bounds, default=None)
