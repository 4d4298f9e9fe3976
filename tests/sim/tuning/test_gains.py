"""What speculation brings: a drafter's steps count, and so does its memory."""

from __future__ import annotations

import pytest

from headrace.config import EngineConfig
from headrace.plan.hardware_table import find_hardware
from headrace.sim.planner.model import from_spec, open_model
from headrace.sim.planner.speed import Speeds
from headrace.sim.tuning.checklist import checklist
from headrace.sim.tuning.formula import USUAL, Formula
from headrace.sim.tuning.gains import (
    ACCEPTANCE,
    DRAFTS,
    drafters_of,
    footprint_of,
    planned_drafts,
    speculation_gain,
)
from headrace.sim.tuning.goal import Goal
from headrace.sim.tuning.trials import Settings, Trials
from headrace.speculative.drafters import Drafters
from tests.sim.tuning.machines import WIDE, machine_of

SETTINGS = Settings(8, "auto", 512, "off", None)


@pytest.mark.parametrize("drafter", ["auto", "tale", "tale-medusa", "tale-eagle"])
def test_drafting_costs_what_the_drafter_costs(drafter: str) -> None:
    config = EngineConfig("tale")
    model = open_model("tale")
    speed = Speeds().of(footprint_of(model, config, WIDE, "auto"))
    drafts = planned_drafts(drafters_of(model, config, drafter), speed)
    assert drafts is not None
    free, priced = speculation_gain(speed, 1, 200), speculation_gain(speed, 1, 200, drafts)
    assert 0 < priced < free
    if drafter == "tale":  # three steps as long as its own, for at most 2.2 tokens
        assert priced < 1 < free


def test_what_is_looked_up_or_not_here_costs_nothing() -> None:
    shape = open_model("shape:smollm2-135m")
    config = EngineConfig(shape.name)
    assert drafters_of(shape, config, "auto").option == "ngram"
    assert drafters_of(shape, config, None) == Drafters()
    assert drafters_of(from_spec("a spec", shape.spec), config, "auto") == Drafters("ngram")
    speed = Speeds().of(footprint_of(shape, config, WIDE, "auto"))
    assert planned_drafts(drafters_of(shape, config, "auto"), speed) is None


def test_verifying_reads_the_kv_of_a_sequence_once() -> None:
    """With long sequences a step is the time to read their KV, which drafts do not change."""
    shape = open_model("shape:llama-3.1-8b")
    speed = Speeds().of(footprint_of(shape, EngineConfig(shape.name), find_hardware("h100"), "auto"))
    accepted = sum(ACCEPTANCE**drafts for drafts in range(DRAFTS + 1))
    assert 0.95 * accepted < speculation_gain(speed, 8, 100_000) <= accepted


def test_trials_count_the_steps_of_the_drafter() -> None:
    config = EngineConfig("tale", adaptive_speculation=False)
    trials = Trials(config, open_model("tale"), machine_of(WIDE), Speeds().profile_of(WIDE))
    seconds = {
        name: trials.at_low_rate(SETTINGS.vary(speculative=name), 0.5).answer_s
        for name in (None, "ngram", "auto", "tale")
    }
    assert seconds["ngram"] < seconds["auto"] < seconds["tale"]
    assert seconds["auto"] < seconds[None] < seconds["tale"]


def test_evicted_tokens_exclude_drafts() -> None:
    config = EngineConfig("tale", kv_eviction="snapkv", kv_eviction_budget=64)
    model = open_model("tale")
    formula = Formula(config, frozenset(), Goal.parse("latency"), model, WIDE, Speeds(), True)
    assert not formula.open.speculative and formula.guess().settings.speculative is None
    found = checklist(config, model, WIDE, Speeds(), USUAL, "a test")
    (item,) = [one for one in found.items if one.technique == "speculation"]
    assert item.state == "not for you" and item.gain is None
