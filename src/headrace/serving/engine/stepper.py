"""One step of engine and executor. A failed step ends the engine, not just the requests in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.core.engine import Engine
from headrace.core.executor import Executor
from headrace.core.types import Output, StepPlan, StepResult
from headrace.errors import EngineDead
from headrace.serving.system import Clock

MAX_IDLE_STEPS = 1000
"""Steps in a row that may grant no tokens, give no outputs and name no time to wait for."""


@dataclass(frozen=True, slots=True)
class Step:
    """`wait_until`: nothing to run before this time on the stepper's clock, unless a request arrives."""

    outputs: list[Output]
    wait_until: float | None = None


class StepMeter(Protocol):
    """Compares steps with the limits of the machine, as `sim.roofline_meter` does."""

    def observe(self, plan: StepPlan, seconds: float, now: float) -> None:
        """A step that ended at `now` took so long."""
        ...

    def fraction(self, now: float) -> float:
        """The share of the limit that recent steps reached, from 0 to 1."""
        ...


class Stepper:
    """Drives an engine that has work. `announce` is called with each plan before it is executed.

    An exception of engine or executor leaves both in an unknown state, so every later step raises it again.
    """

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        clock: Clock,
        announce: Callable[[StepPlan], None] | None = None,
        meter: StepMeter | None = None,
    ) -> None:
        self.engine = engine
        self._executor = executor
        self._clock = clock
        self._announce = announce
        self._meter = meter
        self._idle_steps = 0
        self.error: EngineDead | None = None

    def check(self) -> None:
        """Raises EngineDead if an earlier step failed."""
        if self.error is not None:
            raise self.error

    def step(self) -> Step:
        """Run one step. Raises EngineDead, from the exception, if it fails."""
        self.check()
        try:
            return self._step()
        except BaseException as error:
            what = str(error) or type(error).__name__
            self.error = EngineDead(f"the engine ended in a step that failed: {what:.500}")
            if not isinstance(error, Exception):
                raise  # an interrupt stays one
            raise self.error from error

    def _step(self) -> Step:
        begun_s = self._clock()
        plan = self.engine.begin(begun_s)
        if self._announce is not None:
            self._announce(plan)
        result = StepResult(plan.step_id) if plan.empty else self._executor.execute(plan)
        ended_s = self._clock()
        outputs = self.engine.finish(result, ended_s)
        if self._meter is not None:
            self._meter.observe(plan, ended_s - begun_s, ended_s)
        idle = plan.empty and not outputs and plan.wait_until is None
        self._idle_steps = self._idle_steps + 1 if idle else 0
        if self._idle_steps > MAX_IDLE_STEPS:
            raise RuntimeError(
                f"the scheduler granted nothing in {MAX_IDLE_STEPS} steps, although it has work"
            )
        return Step(outputs, plan.wait_until)
