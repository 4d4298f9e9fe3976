"""The client of an engine in the same process and thread."""

from __future__ import annotations

import time

from headrace.core.engine import Engine, EngineStats
from headrace.core.executor import Executor
from headrace.core.types import NewRequest, Output
from headrace.serving.clock import MONOTONIC, Clock, Sleep
from headrace.serving.stepper import Stepper


class InProcessClient:
    """Add requests, then call `step` while `has_work`.

    When a step fails, every request is lost: that step, and all calls after it, raise EngineDead with the cause.
    """

    def __init__(
        self, engine: Engine, executor: Executor, clock: Clock = MONOTONIC, sleep: Sleep = time.sleep
    ) -> None:
        self._stepper = Stepper(engine, executor, clock)
        self._engine = engine
        self._clock = clock
        self._sleep = sleep

    @property
    def has_work(self) -> bool:
        """True while `step` can still give news."""
        return self._stepper.error is None and self._engine.has_work

    def add(self, new: NewRequest) -> None:
        """Queue a request. Raises RequestError where it cannot be served, EngineDead after a failed step."""
        self._stepper.check()
        self._engine.add(new, self._clock())

    def abort(self, request_id: str, index: int | None = None, *, stopped: bool = False) -> None:
        """End a request, or one of its completions; unknown ids are ignored. See `Engine.abort`."""
        if self._stepper.error is None:
            self._engine.abort(request_id, self._clock(), index, stopped=stopped)

    def step(self) -> list[Output]:
        """Run one step and return its news, which may be none.

        Where nothing can run before a certain time (dynamic batching), sleeps until then. Raises EngineDead.
        """
        step = self._stepper.step()
        if step.wait_until is not None and not step.outputs:
            pause = step.wait_until - self._clock()
            if pause > 0:
                self._sleep(pause)
        return step.outputs

    def stats(self) -> EngineStats:
        """Who runs and waits now, and counts since the start."""
        return self._engine.stats()
