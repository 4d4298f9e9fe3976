"""The checklist of techniques: states follow from the config, gains from the machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.plan.hardware_table import find_hardware
from headrace.plan.units import MIB
from headrace.sim.planner.model import PlannedModel, open_model
from headrace.sim.planner.speed import Speeds, Traffic
from headrace.sim.tuning.checklist import WORTH, Checklist, Item, checklist
from tests.sim.tuning.machines import SLOW, WIDE

NAMES = [
    "KV cache", "paged KV", "continuous batching", "batch of", "prefix cache", "chunked prefill", "weights in int8",
    "weights in int4", "KV in int8", "speculation", "flash attention", "threads and pinning", "graphs (the tape)",
    "tensor parallel",
]  # fmt: skip


@pytest.fixture(scope="module")
def small() -> PlannedModel:
    return open_model("shape:smollm2-135m")


def judged(model: PlannedModel, hardware=SLOW, rate: float | None = None, **options: Any) -> Checklist:  # type: ignore[no-untyped-def]
    config = EngineConfig(model.name, **{"step_time_budget": "auto", **options})
    return checklist(config, model, hardware, Speeds(), Traffic(220, 195), "a test", rate)


def of(found: Checklist, name: str) -> Item:
    return next(item for item in found.items if item.technique.startswith(name))


def test_every_technique_is_judged_once(small: PlannedModel) -> None:
    found = judged(small)
    assert len(found.items) == len(NAMES)
    for item, name in zip(found.items, NAMES, strict=True):
        assert item.technique.startswith(name) and item.why and item.measure
        assert item.gain is None or item.gain > 0
        if item.state == "off":
            assert item.next.startswith("headrace serve shape:smollm2-135m --")
            assert item.gain is not None and item.gain >= WORTH
        else:
            assert item.technique.startswith("threads") or item.next == "nothing"


def test_commands_quote_the_models_path(small: PlannedModel) -> None:
    found = judged(replace(small, name="my model"))
    nexts = [item.next for item in found.items if item.next != "nothing"]
    assert nexts and all("headrace serve 'my model' " in one for one in nexts)
    assert "-m 'my model'" in of(found, "speculation").why


def test_states_follow_from_the_config(small: PlannedModel) -> None:
    plain = judged(small)
    assert of(plain, "weights in int4").state == "off" and of(plain, "chunked").state == "on"
    changed = judged(small, quantization="int4", step_time_budget="off", enable_prefix_caching=False)
    assert of(changed, "weights in int4").state == "on"
    assert of(changed, "weights in int4").gain == pytest.approx(of(plain, "weights in int4").gain, rel=0.2)
    assert of(changed, "chunked").state == of(changed, "prefix cache").state == "off"
    assert of(judged(small, kv_cache_dtype="int8"), "KV in int8").state == "on"
    assert of(judged(small, num_threads=1), "threads").next.endswith("--num-threads 2")


def test_of_two_settings_that_are_on_each_has_its_own_gain(small: PlannedModel) -> None:
    both = judged(small, quantization="int4", kv_cache_dtype="int8")
    weights = of(both, "weights in int4").gain
    assert weights == pytest.approx(both.point.output_per_s / judged(
        small, kv_cache_dtype="int8"
    ).point.output_per_s)  # fmt: skip
    assert of(both, "KV in int8").gain != pytest.approx(weights)


def test_the_type_of_kv_is_the_configs(small: PlannedModel) -> None:
    sizes = {kv: of(judged(small, kv_cache_dtype=kv), "KV in int8").why for kv in ("bfloat16", "fp8", "int4")}
    assert len(set(sizes.values())) == 3
    gpu = judged(small, find_hardware("h100"), kv_cache_dtype="fp8_e4m3")
    assert of(gpu, "KV in fp8").state == "on"


def test_gains_follow_from_the_machine(small: PlannedModel) -> None:
    assert (
        of(judged(small, WIDE, max_num_seqs=1), "speculation").state == "off"
    )  # verifying costs nothing there
    bound = of(judged(small, replace(SLOW, bandwidth=4e12)), "speculation")
    assert bound.state == "not for you" and bound.gain is not None and bound.gain < 1
    tight = judged(small, replace(SLOW, memory=700 * MIB))
    ample = judged(small)
    assert (of(tight, "paged").gain or 0) > (of(ample, "paged").gain or 0)
    assert (of(ample, "continuous").gain or 0) > 1.5


def test_the_load_sets_the_batch(small: PlannedModel) -> None:
    full = judged(small)
    assert full.use is None and full.point.batch == 64
    most = full.point.requests_per_s
    idle = judged(small, rate=0.2 * most)
    assert idle.use is not None and idle.use < 0.5 and idle.point.batch < 64
    crowded = judged(small, rate=5 * most)
    assert crowded.use is not None and crowded.use > 1 and crowded.point.batch == 64


def test_other_machines(small: PlannedModel) -> None:
    found = judged(small, find_hardware("2xh100"))
    assert found.hardware == "one device of 2xh100"
    assert found.point == judged(small, find_hardware("h100")).point
    names = [item.technique for item in found.items]
    assert "weights in fp8" in names and "KV in fp8" in names
    assert of(found, "tensor parallel").state == "not for you"
    assert of(judged(small, find_hardware("a100")), "KV in fp8").why == "the device has no fp8"


def test_a_model_that_does_not_fit(small: PlannedModel) -> None:
    with pytest.raises(ConfigError, match="does not fit on this: see `headrace plan"):
        judged(small, replace(SLOW, memory=64 * MIB))
