"""The share of the roofline that steps reach, held against numbers made by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from headrace.build import survey
from headrace.config import EngineConfig
from headrace.core.engine import Engine
from headrace.core.params import SamplingParams
from headrace.core.policy import SchedulerConfig
from headrace.core.types import KVGroupSpec, NewRequest, SeqSlice, SliceResult, StepPlan, StepResult
from headrace.serving.engine.stepper import Stepper
from headrace.serving.metrics import engine_samples
from headrace.serving.totals import EngineTotals
from headrace.sim.cost import CostModel
from headrace.sim.machine import assumed_profile
from headrace.sim.profile_store import profile_key, store_profile
from headrace.sim.roofline_meter import EVERY_S, IDLE_S, RooflineMeter, roofline_meter
from headrace.sim.work import decode_shape, model_work

PLAN = StepPlan(1, tuple(SeqSlice(number, (5,), 100, sample=True) for number in range(4)))


@pytest.fixture(scope="module")
def cost() -> CostModel:
    plan = survey(EngineConfig("tale", num_threads=1))
    return CostModel(model_work(plan.spec, plan.resolved), assumed_profile())


def test_the_share_is_that_of_the_plain_roofline(cost: CostModel) -> None:
    meter = RooflineMeter(cost)
    assert meter.fraction(0.0) == 0.0
    limit_s = cost.formula_s(decode_shape(4, 100))
    meter.observe(PLAN, 4 * limit_s, 1.0)
    assert meter.fraction(1.0) == pytest.approx(0.25)
    meter.observe(PLAN, limit_s / 2, 1.1)  # too soon after the other one to be priced
    assert meter.fraction(1.1) == pytest.approx(0.25)
    for step in range(200):
        meter.observe(PLAN, EVERY_S, 2.0 + step)
    assert meter.fraction(201.0) == pytest.approx(limit_s / EVERY_S)
    assert meter.fraction(201.0 + IDLE_S + 0.1) == 0.0


def test_few_steps_are_priced(cost: CostModel, monkeypatch: pytest.MonkeyPatch) -> None:
    priced = []
    monkeypatch.setattr(CostModel, "formula_s", lambda self, shape: priced.append(shape) or 1e-4)
    meter = RooflineMeter(cost)
    for step in range(1000):
        meter.observe(PLAN, 0.001, step / 1000)
    assert 3 <= len(priced) <= 5


def test_without_a_measured_profile_there_is_no_limit(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = survey(EngineConfig("tale"))
    assert roofline_meter(plan.spec, plan.resolved) is None
    if plan.resolved.kernels is None:
        return
    key = profile_key(plan.resolved.kernels, plan.resolved.num_threads)
    store_profile(replace(assumed_profile(), source="measured", key=key))
    assert roofline_meter(plan.spec, plan.resolved) is not None


class Sevenths:
    """A meter that records steps and always gives 3/7."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float, float]] = []

    def observe(self, plan: StepPlan, seconds: float, now: float) -> None:
        self.steps.append((plan.step_id, seconds, now))

    def fraction(self, now: float) -> float:
        return 3 / 7


class Done:
    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step_id, tuple(SliceResult(one.request_id, (1,)) for one in plan.slices))


def test_steps_are_metered_from_plan_to_result() -> None:
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, vocab_size=10)
    engine, meter, clock = Engine(config, [KVGroupSpec("full", 8, 8)]), Sevenths(), itertools.count()
    engine.add(NewRequest("a", (1, 2), SamplingParams(max_tokens=2, ignore_eos=True)), 0.0)
    stepper = Stepper(engine, Done(), lambda: float(next(clock)), meter=meter)
    stepper.step()
    stepper.step()
    assert meter.steps == [(1, 1.0, 1.0), (2, 1.0, 3.0)]


def test_the_metric_is_there_where_the_share_is_measured() -> None:
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, vocab_size=10)
    stats, totals = Engine(config, [KVGroupSpec("full", 8, 8)]).stats(), EngineTotals()
    totals.take(0, stats)
    name = "headrace:roofline_fraction"
    assert name not in {sample.name for sample in engine_samples(totals)}
    totals.take(0, replace(stats, roofline_fraction=3 / 7))
    assert {sample.name: sample.value for sample in engine_samples(totals)}[name] == 3 / 7
