"""How close the engine's steps come to this machine's limits: the plain roofline's time of a step over its time."""

from __future__ import annotations

from headrace.core.types import StepPlan
from headrace.models.spec import ModelSpec
from headrace.plan.resolved import ResolvedConfig
from headrace.sim.cost import CostModel
from headrace.sim.profile_store import this_profile
from headrace.sim.work import model_work, step_shape

EVERY_S = 0.25
"""Seconds of steps between two that are priced: pricing one takes some 0.1 ms."""
_NEW = 0.2
"""Weight of a new step."""
IDLE_S = 2.0
"""Without a step for so long the share is 0."""


class RooflineMeter:
    """Prices the step that runs after every `EVERY_S` of busy time: each step counts as often as it takes time."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._busy_s = EVERY_S
        self._share = 0.0
        self._last_s: float | None = None

    def observe(self, plan: StepPlan, seconds: float, now: float) -> None:
        """A step that ended at `now` took so long."""
        self._busy_s += seconds
        self._last_s, first = now, self._last_s is None
        if self._busy_s < EVERY_S or seconds <= 0 or not plan.slices:
            return
        self._busy_s = 0.0
        share = min(1.0, self._cost.formula_s(step_shape(plan)) / seconds)
        self._share = share if first else self._share + _NEW * (share - self._share)

    def fraction(self, now: float) -> float:
        """The share from 0 to 1, as a running mean; 0 while the engine is idle."""
        return 0.0 if self._last_s is None or now - self._last_s > IDLE_S else self._share


def roofline_meter(spec: ModelSpec, resolved: ResolvedConfig) -> RooflineMeter | None:
    """None where `headrace calibrate` has not measured this machine: there are no limits to compare with."""
    profile = this_profile(resolved.kernels, resolved.num_threads)
    return None if profile is None else RooflineMeter(CostModel(model_work(spec, resolved), profile))
