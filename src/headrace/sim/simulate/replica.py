"""One engine on a simulated clock: it is idle, or a step runs until a known time, or several that only decode."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate

from headrace.core.engine import Engine
from headrace.core.steady import skip, steady_steps
from headrace.core.types import NewRequest, Output, StepPlan, StepResult
from headrace.errors import HeadraceError
from headrace.sim.simulate.executor import SimulatedExecutor
from headrace.sim.simulate.tally import Tally
from headrace.sim.simulate.times import StepTimes

_MOST_SKIPPED = 1024


class Replica:
    """Runs one engine. `next_s` is when something happens here next: a step ends, or a batch that waits may start;
    infinite while it is idle.

    At `next_s` call `finish`, then `add` what arrives at that very time, then `start`. With `skipping`, steps that only
    decode are run many at once, with the same results.
    """

    def __init__(
        self,
        engine: Engine,
        executor: SimulatedExecutor,
        times: StepTimes,
        tally: Tally,
        *,
        skipping: bool = True,
    ) -> None:
        self.engine = engine
        self.next_s = math.inf
        self.busy_s = 0.0
        self.drafting_s = 0.0  # of it
        self.is_up = True  # False from a failure until the recovery
        self.unfinished = 0  # requests here, those that wait for the end of the step included
        self.steps = self.skipped = 0  # run one by one, and at once with others
        self._executor = executor
        self._times = times
        self._tally = tally
        self._skipping = skipping
        self._arrived: deque[tuple[NewRequest, float]] = deque()
        self._plan: StepPlan | None = None
        self._result: StepResult | None = None  # of that plan
        self._begun_s = 0.0
        self._ends_s: list[float] = []  # of steady steps that run at once

    def add(self, request: NewRequest, arrival_s: float, now: float) -> None:
        """A request comes in at `now`; it joins the queue when the present step has ended. `arrival_s` may be earlier:
        latencies count from then."""
        self._arrived.append((request, arrival_s))
        self.unfinished += 1
        if self._ends_s:
            del self._ends_s[bisect_left(self._ends_s, now) + 1 :]  # the step that runs now is the last one
            self.next_s = self._ends_s[-1]
        elif self._plan is None:
            self.next_s = now

    @property
    def is_running(self) -> bool:
        """Steps run until `next_s`."""
        return self._plan is not None or bool(self._ends_s)

    def busy_until(self, now: float) -> float:
        """`busy_s`, with the part of the present step until `now`."""
        return self.busy_s + (now - self._begun_s if self.is_running else 0.0)

    def settle(self, now: float) -> None:
        """Apply the steps that have ended by `now`, so that the engine can be looked at; no request ends in them."""
        if self._ends_s and (count := bisect_right(self._ends_s, now, hi=len(self._ends_s) - 1)):
            self._skip(self._ends_s[:count])
            del self._ends_s[:count]

    def finish(self) -> list[Output]:
        """End what runs until `next_s`; returns the outputs of requests that ended."""
        end_s = self.next_s
        if self._ends_s:
            ends_s, self._ends_s = self._ends_s, []
            outputs = self._skip(ends_s)
        elif self._plan is not None:
            result, self._plan, self._result = self._result, None, None
            assert result is not None
            before = {request.key: request.stats.last_token_s for request in self.engine.scheduler.running}
            outputs = self.engine.finish(result, end_s)
            self._count(outputs, before, end_s)
            self.steps += 1
            self.busy_s += end_s - self._begun_s
        else:
            return []
        ended = [output for output in outputs if output.finish_reason is not None]
        self.unfinished -= len(ended)
        return ended

    def start(self, now: float) -> list[tuple[str, HeadraceError]]:
        """Begin what comes next at `now`, between two steps; returns the requests that the engine does not take."""
        engine = self.engine
        untaken: list[tuple[str, HeadraceError]] = []
        while self._arrived:
            request, arrival_s = self._arrived.popleft()
            try:
                engine.add(request, arrival_s)
            except HeadraceError as error:
                untaken.append((request.key, error))
                self.unfinished -= 1
        self._begun_s = now
        if self._skipping and (steps := steady_steps(engine)) > 1:
            running = engine.scheduler.running
            keys = sum(len(request.tokens) for request in running)
            times = self._times.steady_s(len(running), keys, min(steps, _MOST_SKIPPED))
            self._ends_s = [now + passed for passed in accumulate(times)]
            self.next_s = self._ends_s[-1]
            return untaken
        while engine.has_work:
            plan = engine.begin(now)
            result = self._executor.execute(plan)
            if plan.slices:
                self._plan, self._result = plan, result
                drafting_s = self._executor.drafting_s
                self.drafting_s += drafting_s
                self.next_s = now + self._times.plan_s(plan) + drafting_s
                return untaken
            engine.finish(result, now)
            if plan.wait_until is not None:
                self.next_s = plan.wait_until
                return untaken
        self.next_s = math.inf
        return untaken

    def _skip(self, ends_s: list[float]) -> list[Output]:
        running = self.engine.scheduler.running
        first_s, at_once = ends_s[0], 0
        for request in running:
            last_s = request.stats.last_token_s
            if last_s == self._begun_s:
                at_once += 1
            else:
                self._tally.itl.add(first_s - (last_s or 0.0))
        gaps = [first_s - self._begun_s, *map(_difference, ends_s[1:], ends_s)]
        if at_once:
            self._tally.itl.add(gaps[0], at_once)
        if len(gaps) > 1:
            self._tally.itl.add_rising(gaps[1:], len(running))
        self.skipped += len(ends_s)
        self.busy_s += ends_s[-1] - self._begun_s
        self._begun_s = ends_s[-1]
        return skip(self.engine, self._executor.source.tokens, ends_s)

    def _count(self, outputs: list[Output], before: dict[str, float | None], end_s: float) -> None:
        """Gaps between tokens of a stream; tokens of one step come together."""
        itl = self._tally.itl
        for output in outputs:
            count = len(output.tokens)
            if not count:
                continue
            last_s = before.get(output.request_id)
            if last_s is not None:
                itl.add(end_s - last_s)
            if count > 1:
                itl.add(0.0, count - 1)


def _difference(end_s: float, begin_s: float) -> float:
    return end_s - begin_s
