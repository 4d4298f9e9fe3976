"""Settings for a goal, on machines made up for the test: what is chosen follows from the rates, and options win."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import pytest

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.plan.hardware import Hardware
from headrace.sim.planner.model import PlannedModel, open_model
from headrace.sim.planner.speed import Speeds
from headrace.sim.tuning.choose import MARGIN
from headrace.sim.tuning.formula import SLOWER, Formula
from headrace.sim.tuning.goal import Goal
from headrace.sim.tuning.settle import Settled, settle
from headrace.sim.tuning.trials import LOW_REQUESTS, MOST_WORK, Settings, SpentError, Trials
from tests.sim.tuning.machines import FAST, SLOW, WIDE, machine_of


@pytest.fixture(scope="module")
def small() -> PlannedModel:
    return open_model("shape:smollm2-135m")


def settled_anew(
    goal: str, model: PlannedModel, hardware: Hardware = SLOW, native: bool = True, **options: Any
) -> Settled:
    config = EngineConfig(model.name, **options)
    machine = machine_of(hardware, native)
    return settle(config, options, Goal.parse(goal), model, hardware, Speeds(), "a test", machine)


settled = functools.cache(settled_anew)
"""Simulated once for all tests that need it."""


def test_goals() -> None:
    assert Goal.parse(" Latency ") == Goal("latency")
    assert str(Goal.parse("throughput")) == "throughput"
    assert Goal.parse("ttft=0.3, tpot=0.03") == Goal("promise", 0.3, 0.03)
    assert Goal.parse("tpot=0.05") == Goal("promise", None, 0.05)
    assert str(Goal("promise", 0.3, 0.03)) == "ttft=0.3,tpot=0.03"
    for wrong in ("", "fast", "ttft", "ttft=", "ttft=0", "ttft=-1", "ttft=nan", "ttft=4000", "ttft=1,ttft=2", "a=1",
                  "ttft=1,", "x" * 500):  # fmt: skip
        with pytest.raises(ConfigError, match="--for takes latency, throughput, or times") as caught:
            Goal.parse(wrong)
        assert len(str(caught.value)) < 250


def test_latency_bounds_the_batch_by_the_time_of_a_step(small: PlannedModel) -> None:
    found = settled("latency", small)
    config, point = found.config, found.point
    assert config.max_num_seqs == point.batch and config.step_time_budget == "auto"
    alone = settled(
        "latency", small, max_num_seqs=1, kv_cache_dtype="int8" if config.kv_cache_dtype == "int8" else "auto"
    )
    assert point.decode_s <= SLOWER * alone.point.decode_s * 1.01
    assert {choice.name for choice in found.choices} == {
        "max_num_seqs", "kv_cache_dtype", "max_num_batched_tokens", "step_time_budget", "speculative",
    }  # fmt: skip
    lines = found.describe()
    assert len(lines) == 6 and "TTFT" in lines[0] and all(choice.why for choice in found.choices)


@pytest.mark.long
def test_throughput_takes_larger_batches_than_latency(small: PlannedModel) -> None:
    wide, narrow = settled("throughput", small, WIDE), settled("latency", small, WIDE)
    assert (wide.config.max_num_seqs or 0) > (narrow.config.max_num_seqs or 0)
    assert wide.point.output_per_s > narrow.point.output_per_s
    assert wide.config.step_time_budget == "off"


@pytest.mark.long
def test_drafts_follow_from_what_verifying_costs(small: PlannedModel) -> None:
    assert settled("latency", small, WIDE).config.speculative == "auto"
    compute_bound = replace(SLOW, bandwidth=4e12)
    found = settled("throughput", small, compute_bound)
    assert found.config.speculative is None
    assert "speculation gives about the tokens/s of no speculation" in found.reasons["speculative"]
    always = settled("throughput", small, compute_bound, adaptive_speculation=False)
    assert always.config.speculative is None and "speculation gives 0." in always.reasons["speculative"]


def test_a_promise_is_kept_with_the_most_requests(small: PlannedModel) -> None:
    found = settled("ttft=1.5,tpot=0.1", small, quantization="int4")
    assert found.point.ttft_s <= 1.5 and found.point.tpot_s <= 0.1
    assert found.config.step_time_budget == pytest.approx(0.1)


@pytest.mark.long
def test_a_tighter_promise_is_kept_with_fewer_requests(small: PlannedModel) -> None:
    found = settled("ttft=1.5,tpot=0.1", small, quantization="int4")
    tighter = settled("ttft=1.5,tpot=0.05", small, quantization="int4")
    assert (tighter.config.max_num_seqs or 0) < (found.config.max_num_seqs or 0)


@pytest.mark.long
def test_a_time_budget_above_the_promise_says_so(small: PlannedModel) -> None:
    alone = settled("latency", small, max_num_seqs=1).point
    goal = 1.01 * alone.tpot_s
    found = settled(f"tpot={goal:.6f}", small, max_num_seqs=1)
    budget = found.config.step_time_budget
    assert isinstance(budget, float) and budget > goal
    assert "no step" not in found.reasons["step_time_budget"]


def test_a_promise_that_cannot_be_kept_names_the_nearest_one_that_can(small: PlannedModel) -> None:
    with pytest.raises(ConfigError) as caught:
        settled("ttft=0.001,tpot=0.0001", small)
    text = str(caught.value)
    assert text.startswith("this machine cannot keep --for ttft=0.001,tpot=0.0001") and "\n" not in text
    nearest = re.search(r"nearest possible is --for (\S+?)(,? and with .*)?$", text)
    assert nearest is not None
    settled(nearest[1].rstrip(","), small)


@pytest.mark.long
def test_a_faster_machine_keeps_a_tighter_promise(small: PlannedModel) -> None:
    assert settled("ttft=1,tpot=0.05", small, FAST)


def test_a_refusal_names_a_format_that_would_do(small: PlannedModel) -> None:
    plain = settled("latency", small, max_num_seqs=1, kv_cache_dtype="int8").point.tpot_s
    int8 = settled("latency", small, max_num_seqs=1, kv_cache_dtype="int8", quantization="int8").point.tpot_s
    assert int8 < plain
    with pytest.raises(ConfigError, match=r"with --quantization int[48] the promise can be kept"):
        settled(f"tpot={(int8 + plain) / 2:.6f}", small)


def test_explicit_options_win(small: PlannedModel) -> None:
    given = {
        "max_num_seqs": 3, "kv_cache_dtype": "bfloat16", "max_num_batched_tokens": 100, "step_time_budget": "off",
        "speculative": "ngram",
    }  # fmt: skip
    found = settled("latency", small, **given)
    assert found.choices == ()
    assert {name: getattr(found.config, name) for name in given} == given
    assert found.point.batch == 3


@pytest.mark.long
def test_a_batch_is_no_larger_than_a_step(small: PlannedModel) -> None:
    one = settled("throughput", small, speculative=None, max_num_batched_tokens=64)
    assert (one.config.max_num_seqs or 0) <= 64 and "speculative" not in one.reasons


def test_where_only_floats_are_kept_int8_is_not_chosen(small: PlannedModel) -> None:
    found = settled("latency", small, native=False)
    assert found.config.kv_cache_dtype == "auto" and "kv_cache_dtype" not in found.reasons


@pytest.mark.long
@pytest.mark.parametrize("options", [{"kv_cache": False}, {"enable_chunked_prefill": False}])
def test_what_a_config_excludes_is_not_chosen(small: PlannedModel, options: dict[str, Any]) -> None:
    for goal in ("latency", "throughput"):
        config = settled(goal, small, WIDE, **options).config
        assert config.step_time_budget == "off"
        assert config.max_num_batched_tokens is None  # whole prompts must fit into a step


def test_the_simulation_decides_where_the_formula_differs(small: PlannedModel) -> None:
    """By the formula 32 sequences bring most; each request that joins stalls them, as a whole queue shows."""
    config, goal = EngineConfig(small.name), Goal.parse("throughput")
    formula = Formula(config, frozenset(), goal, small, SLOW, Speeds(), True)
    guess, found = formula.guess(), settled("throughput", small)
    assert found.chosen is not None
    taken = [one for one in found.chosen.tried if one.taken and one.name == "max_num_seqs"]
    assert taken and found.config.max_num_seqs == taken[-1].value != guess.settings.max_num_seqs
    assert (taken[-1].gain or 0) >= MARGIN
    assert formula.point(found.chosen.outcome.settings).output_per_s < guess.point.output_per_s
    assert f"by simulation of {found.chosen.requests:,} requests" in found.describe()[0]


@pytest.mark.parametrize(
    "goal",
    [
        "latency",
        pytest.param("throughput", marks=pytest.mark.long),
        pytest.param("ttft=1.5,tpot=0.1", marks=pytest.mark.long),
    ],
)
def test_a_goal_is_settled_alike_twice(small: PlannedModel, goal: str) -> None:
    first = settled(goal, small)
    assert first.chosen is not None and first.chosen.requests > 0
    again = settled_anew(goal, open_model("shape:smollm2-135m"))
    assert again == first and again.describe() == first.describe()


@pytest.mark.long
def test_equal_machines_get_equal_settings_for_bounded_work(small: PlannedModel) -> None:
    trials = Trials(EngineConfig(small.name), small, machine_of(SLOW), Speeds().profile_of(SLOW))
    settings = Settings(4, "auto", 512, "auto", None)
    first = trials.at_low_rate(settings, 0.5)
    assert first == trials.at_low_rate(settings, 0.5) and trials.requests == 2 * LOW_REQUESTS
    with pytest.raises(SpentError):
        while True:
            trials.full(settings)
    assert MOST_WORK <= trials.work < 1.01 * MOST_WORK
