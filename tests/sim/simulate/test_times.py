"""Times of steps in a row are those of each step, though few of them are priced."""

from __future__ import annotations

import pytest

from headrace.config import EngineConfig
from headrace.core.types import Observation, SeqSlice, StepPlan
from headrace.plan.hardware_table import find_hardware
from headrace.sim.cost import CostModel
from headrace.sim.simulate.deploy import deploy
from headrace.sim.simulate.times import CostTimes, on_lines
from headrace.sim.work import step_shape


@pytest.fixture(scope="module")
def cost() -> CostModel:
    return deploy(EngineConfig("shape:smollm2-135m"), find_hardware("l4")).cost


def test_a_plan_costs_what_its_shape_costs(cost: CostModel) -> None:
    slices = (
        SeqSlice(0, (1,), 700, sample=True),
        SeqSlice(1, (1,), 30, sample=True),
        SeqSlice(2, (1,) * 40, 100, sample=False),
        SeqSlice(3, (1,) * 9, 0, sample=True),
        SeqSlice(4, (1,) * 4, 500, sample=True, num_draft=3),
    )
    for count in range(1, len(slices) + 1):
        plan = StepPlan(1, slices[:count])
        assert CostTimes(cost).plan_s(plan) == pytest.approx(cost.step_s(step_shape(plan)), rel=1e-12)
    assert CostTimes(cost).plan_s(StepPlan(1, slices[2:])) == pytest.approx(
        cost.step_s(step_shape(StepPlan(1, slices[2:]))), rel=1e-12
    )


def test_evicting_takes_time(cost: CostModel) -> None:
    """The queries that decide meet the keys again; the last of them, tokens are chosen and moved."""
    shares = []
    for targets in (None, (), ((1, 2),)):
        observation = None if targets is None else Observation(8, True, targets)
        work = SeqSlice(0, (1,) * 8, 992, sample=True, observation=observation)
        shares.append(CostTimes(cost, budget=256).plan_s(StepPlan(1, (work,))))
    plain, observed, moved = shares
    assert observed - plain == pytest.approx(cost.evicting_s(8, 1000))
    assert moved - plain == pytest.approx(cost.evicting_s(8, 1000, 256))
    assert plain < observed < moved


@pytest.mark.parametrize(
    ("batch", "keys", "steps"), [(1, 5, 3), (3, 900, 200), (8, 2000, 700), (64, 70_000, 40)]
)
def test_steady_steps_cost_what_each_of_them_costs(
    cost: CostModel, batch: int, keys: int, steps: int
) -> None:
    expected = [cost.decoding_s(batch, keys + batch * step) for step in range(steps)]
    times = CostTimes(cost)
    for _ in range(2):  # the second time from what is remembered
        assert times.steady_s(batch, keys, steps) == pytest.approx(expected, rel=1e-8)


def test_lines_with_bends_are_found() -> None:
    priced = []

    def price(step: int) -> float:
        priced.append(step)
        return max(5.0 + 0.01 * step, 2.0 + 0.02 * step)  # a bend at 300

    assert on_lines(price, 1000) == pytest.approx([price(step) for step in range(1000)])
    priced.clear()
    on_lines(price, 1000)
    assert len(priced) < 120
