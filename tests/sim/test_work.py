"""Bytes and operations of a step, compared with plain loops and hand-computed numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.build import survey
from headrace.config import EngineConfig
from headrace.core.types import Retention
from headrace.models.spec import KVLayout
from headrace.quant.format import BF16, F32, WeightFormat, WeightFormats, parse_format
from headrace.sim.work import ModelWork, SliceShape, decode_shape, model_work, visible


def layout(window: int | None = None, sinks: int = 0) -> KVLayout:
    retention = Retention.FULL if window is None else Retention.SINKS if sinks else Retention.WINDOW
    return KVLayout("made", (0,), retention, window, sinks, num_kv_heads=2, head_dim=16)


def seen_by(position: int, kv: KVLayout) -> set[int]:
    past = range(position + 1)
    if kv.window is None:
        return set(past)
    return {key for key in past if key < kv.sinks or position - key < kv.window}


@pytest.mark.parametrize(("window", "sinks"), [(None, 0), (5, 0), (5, 3), (100, 4)])
@pytest.mark.parametrize("start", [0, 4, 7, 9, 30])
@pytest.mark.parametrize("tokens", [1, 2, 6, 20])
def test_visible_keys_equal_a_plain_loop(window: int | None, sinks: int, start: int, tokens: int) -> None:
    kv = layout(window, sinks)
    sights = [seen_by(position, kv) for position in range(start, start + tokens)]
    pairs, keys = visible(SliceShape(tokens, start, 1), kv)
    assert pairs == sum(len(sight) for sight in sights)
    assert keys == len(set().union(*sights))


def work_of(**options: object) -> ModelWork:
    plan = survey(EngineConfig.from_kwargs(model="shape:tiny", max_model_len=128, **options))
    return model_work(plan.spec, plan.resolved)


def test_a_decode_step_by_hand() -> None:
    """Shape tiny: hidden 64, inner 128, 2 layers, 4 heads of 16, 2 KV heads, vocabulary 256, untied; float32."""
    work = work_of(dtype="float32", ops_force="torch")
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 128
    norms = (2 * 2 + 1) * 64
    step = work.step(decode_shape(batch=3, context=10))
    kv_token = 2 * 2 * 2 * 16 * 4
    assert step.bytes == 4 * (2 * layer + norms + 256 * 64) + 3 * (11 + 1) * kv_token
    assert step.operations == {"f32": 3 * (2 * (2 * layer + 256 * 64) + 2 * 4 * 11 * 64)}


def test_a_step_without_logits_leaves_the_head_alone() -> None:
    work = work_of(dtype="float32")
    silent, spoken = (work.step((SliceShape(8, 0, logits),)) for logits in (0, 1))
    assert spoken.bytes - silent.bytes == work.head_bytes
    assert spoken.all_operations - silent.all_operations == 2 * 256 * 64


def test_several_steps_add_up_and_no_step_costs_nothing() -> None:
    work = work_of(dtype="float32")
    one = work.step(decode_shape(2, 5))
    both = work.steps([decode_shape(2, 5), decode_shape(2, 5)])
    assert both.bytes == 2 * one.bytes and both.all_operations == 2 * one.all_operations
    assert work.step(()).bytes == 0


def test_quantised_weights_are_fewer_bytes_and_other_products() -> None:
    plan = survey(EngineConfig(model="shape:tinyllama-1.1b", dtype="bfloat16", max_model_len=128))

    def packed(weights: WeightFormat) -> ModelWork:
        resolved = replace(plan.resolved, kernels="portable", weight_formats=WeightFormats(weights))
        return model_work(plan.spec, resolved)

    wide, narrow = packed(BF16), packed(parse_format("int4"))
    assert wide.weight_product == "bf16" and narrow.weight_product == "i8"
    assert narrow.attention_product == "bf16"
    assert 3.8 < wide.layer_bytes / narrow.layer_bytes < 4
    assert packed(parse_format("int4-a16")).weight_product == "bf16"


def test_each_matrix_counts_with_its_own_product() -> None:
    """As in a quantised checkpoint that leaves its head in floats."""
    plan = survey(EngineConfig(model="shape:tiny", dtype="float32", max_model_len=128))
    head = WeightFormats(parse_format("int4"), (("head", F32), ("1.down", parse_format("int4-a16"))))
    work = model_work(plan.spec, replace(plan.resolved, kernels="portable", weight_formats=head))
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 128
    step = work.step(decode_shape(batch=1, context=0))
    assert step.operations["bf16"] == 2 * 64 * 128
    assert step.operations["i8"] == 2 * (2 * layer - 64 * 128)
    assert step.operations["f32"] == 2 * 64 * 256 + 2 * 4 * 64  # and attention
