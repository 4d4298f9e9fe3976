"""What speculation brings: a drafter's steps count, and so does its memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.config import EngineConfig
from headrace.plan.hardware_table import find_hardware
from headrace.sim.planner.model import from_spec, open_model
from headrace.sim.planner.speed import Speeds
from headrace.sim.tuning.gains import (
    ACCEPTANCE,
    DRAFTS,
    drafters_of,
    footprint_of,
    planned_drafts,
    speculation_gain,
)
from headrace.sim.tuning.trials import Settings, Trials
from headrace.speculative.drafters import Drafters
from tests.sim.tuning.machines import WIDE, machine_of

SETTINGS = Settings(8, "auto", 512, "off", None)


@pytest.mark.parametrize("drafter", ["auto", "tale", "tale-medusa", "tale-eagle"])
def test_drafting_costs_what_the_drafter_costs(drafter: str) -> None:
    config = EngineConfig("tale", speculative=drafter)
    model = open_model("tale")
    speed = Speeds().of(footprint_of(model, config, WIDE, "auto"))
    drafts = planned_drafts(drafters_of(model, config), speed)
    assert drafts is not None
    free, priced = speculation_gain(speed, 1, 200), speculation_gain(speed, 1, 200, drafts)
    assert 0 < priced < free
    if drafter == "tale":  # three steps as long as its own, for at most 2.2 tokens
        assert priced < 1 < free


def test_what_is_looked_up_or_not_here_costs_nothing() -> None:
    shape = open_model("shape:smollm2-135m")
    config = EngineConfig(shape.name, speculative="auto")
    assert drafters_of(shape, config).option == "ngram"
    assert drafters_of(shape, replace(config, speculative=None)) == Drafters()
    assert drafters_of(from_spec("a spec", shape.spec), config) == Drafters("ngram")
    speed = Speeds().of(footprint_of(shape, config, WIDE, "auto"))
    assert planned_drafts(drafters_of(shape, config), speed) is None


def test_verifying_reads_the_kv_of_a_sequence_once() -> None:
    """With long sequences a step is the time to read their KV, which drafts do not change."""
    shape = open_model("shape:llama-3.1-8b")
    speed = Speeds().of(footprint_of(shape, EngineConfig(shape.name), find_hardware("h100"), "auto"))
    accepted = sum(ACCEPTANCE**drafts for drafts in range(DRAFTS + 1))
    assert 0.95 * accepted < speculation_gain(speed, 8, 100_000) <= accepted


def test_trials_count_the_steps_of_the_drafter() -> None:
    trials = Trials(EngineConfig("tale"), open_model("tale"), machine_of(WIDE), Speeds().profile_of(WIDE))
    seconds = {
        name: trials.at_low_rate(SETTINGS.vary(speculative=name), 0.5).answer_s
        for name in (None, "ngram", "auto", "tale")
    }
    assert seconds["ngram"] < seconds["auto"] < seconds["tale"]
    assert seconds["auto"] < seconds[None] < seconds["tale"]
