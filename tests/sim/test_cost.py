"""The cost model, held against numbers made by hand and against the plain count of work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.errors import ConfigError
from headrace.models.families import read_spec
from headrace.models.source import resolve_model
from headrace.models.spec import ModelSpec
from headrace.plan.formats import memory_format
from headrace.plan.hardware_table import HARDWARE
from headrace.quant.format import WeightFormats, parse_format
from headrace.sim.cost import CostModel
from headrace.sim.profile import (
    AttentionCost,
    Curve,
    Levels,
    Link,
    ProductCost,
    Profile,
    Reach,
    SampleCost,
    StepCost,
)
from headrace.sim.work import GPU_PRODUCTS, ModelWork, SliceShape, decode_shape, work_in

H100 = next(one for one in HARDWARE if one.name == "h100")
MIXED = (SliceShape(1, 99, 1), SliceShape(1, 7, 1), SliceShape(64, 32, 0), SliceShape(5, 0, 1))


def spec_of(name: str) -> ModelSpec:
    source = resolve_model(name)
    return read_spec(source.config, source.generation_config)


def on_gpu(name: str, formats: str | None = None, kv: str = "bfloat16") -> ModelWork:
    weights = None if formats is None else WeightFormats(parse_format(formats))
    return work_in(spec_of(name), memory_format("bfloat16", kv, weights), GPU_PRODUCTS)


def plain(**changes: object) -> Profile:
    """1 GB/s, 10 Gflop/s, and nothing besides."""
    profile = Profile("made", "data sheet", ((1e9, 1e9),), {"bf16": 1e10, "f32": 1e10})
    return replace(profile, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["shape:tiny", "shape:deepseek-v2-lite", "shape:gemma-2-2b", "shape:llama-2-70b"]
)
def test_the_breakdown_adds_up_to_the_step(name: str) -> None:
    model = CostModel(on_gpu(name), Profile.of_hardware(H100))
    for shape in (MIXED, decode_shape(3, 5000), (SliceShape(2000, 3000, 0),), ()):
        parts = model.breakdown(shape)
        assert sum(part.seconds for part in parts) == pytest.approx(model.step_s(shape), rel=1e-9)
        assert all(part.seconds >= 0 for part in parts)
    assert model.step_s(()) == 0


def test_work_of_the_ops_is_the_work_of_the_step() -> None:
    """Bytes and operations of the matrices and of attention, counted op by op, are those of the whole program."""
    work = on_gpu("shape:tinyllama-1.1b")
    for shape in (MIXED, decode_shape(4, 100)):
        parts = {part.op: part for part in CostModel(work, plain()).breakdown(shape)}
        heavy = [part for part in parts.values() if part.bound != "fixed"]
        whole = work.step(shape)
        assert sum(part.operations for part in heavy) == pytest.approx(whole.all_operations)
        norms = 2048 * 2 * (2 * 22 + 1)
        written = sum(part.tokens for part in shape) * sum(size for _, size in work.groups)
        assert sum(part.bytes for part in heavy) == pytest.approx(whole.bytes - norms - written)


def test_a_decode_step_by_hand() -> None:
    """Shape tiny in bf16 at 1 GB/s: every byte of a matrix and of the KV takes 1 ns. Its ops without a matrix move 8
    bytes for each element of the wider side."""
    model = CostModel(on_gpu("shape:tiny"), plain())
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 128
    matrices = 2 * (2 * layer + 256 * 64)
    kv = 2 * 2 * 2 * 16 * 2 * 11
    parts = {part.op: part for part in model.breakdown(decode_shape(1, 10))}
    heavy = sum(part.seconds for part in parts.values() if part.bound == "memory")
    assert heavy == pytest.approx((matrices + kv) * 1e-9)
    assert parts["norm"].seconds == pytest.approx((2 * 2 + 1) * 64 * 8e-9)


def test_many_rows_are_bound_by_operations() -> None:
    model = CostModel(on_gpu("shape:tiny"), plain())
    parts = {part.op: part for part in model.breakdown((SliceShape(50, 0, 1),))}
    assert parts["down"].bound == "compute"
    assert parts["down"].seconds == pytest.approx(2 * 2 * 50 * 64 * 128 * 1e-10)
    assert parts["head"].bound == "memory"


def test_reach_call_and_step_costs_count() -> None:
    shape = decode_shape(2, 10)
    base = CostModel(on_gpu("shape:tiny"), plain()).step_s(shape)
    step = plain(step=StepCost(0.5, 0.125, 9.0, prompt_s=64.0))
    assert CostModel(on_gpu("shape:tiny"), step).step_s(shape) == pytest.approx(base + 0.75)
    begun = (SliceShape(3, 0, 0), SliceShape(2, 7, 1))
    more = CostModel(on_gpu("shape:tiny"), step).step_s(begun) - CostModel(
        on_gpu("shape:tiny"), plain()
    ).step_s(begun)
    assert more == pytest.approx(0.75 + 3 * 9.0 + 64.0)
    verified = (SliceShape(3, 7, 3),)  # no prompt ends there
    plain_s = CostModel(on_gpu("shape:tiny"), plain()).step_s(verified)
    assert CostModel(on_gpu("shape:tiny"), step).step_s(verified) - plain_s == pytest.approx(0.625 + 2 * 9.0)
    drawn = plain(samples={"greedy": SampleCost(1.0, 0.25, 0.001)})
    assert CostModel(on_gpu("shape:tiny"), drawn).step_s(shape) == pytest.approx(base + 1.5 + 2 * 0.256)
    half = CostModel(on_gpu("shape:tiny"), plain(reach=Reach(0.5, 0.5, 0.5)))
    parts = {part.op: part.seconds for part in half.breakdown(shape)}
    full = {part.op: part.seconds for part in CostModel(on_gpu("shape:tiny"), plain()).breakdown(shape)}
    assert parts["down"] == pytest.approx(2 * full["down"])
    assert parts["attention"] == pytest.approx(2 * full["attention"])
    called = CostModel(on_gpu("shape:tiny"), plain(call_s=1.0))
    ops = sum(part.seconds for part in called.breakdown(shape)) - base
    assert ops == pytest.approx(round(ops)) and 20 < round(ops) < 40


def test_measured_curves_take_the_place_of_the_formula() -> None:
    """2 ns an element for one row, 3 for three, and 1 ns an output feature; 0.5 ns an element of KV for the two query
    heads of each KV head, 7 ns a key of a KV head, 1 us a KV head of a sequence, 3 ns an element of its queries."""
    elements = Levels((1e6,), (Curve((1.0, 3.0), (2e-9, 3e-9)),))
    visits = Levels((1e6,), (Curve((1.0, 2.0), (0.25e-9, 0.5e-9)),))
    profile = plain(
        products={"bf16": ProductCost(elements, Levels((1e6,), (Curve((1.0,), (1e-9,)),)))},
        attention={"bfloat16": AttentionCost(visits, Curve((1.0,), (3.5e-9,)), 1e-6, 3e-9)},
        rowwise={"norm:bf16": Curve((128.0, 256.0), (1e-3, 2e-3)), "other": Curve((64.0,), (0.5,))},
        call_s=1e-4,
    )
    parts = {
        part.op: part.seconds
        for part in CostModel(on_gpu("shape:tiny"), profile).breakdown(decode_shape(2, 10))
    }
    assert parts["down"] == pytest.approx(2 * (1e-4 + 64 * 128 * 2.5e-9 + 64 * 2 * 1e-9))
    assert parts["norm"] == pytest.approx(5 * 1e-3)
    assert parts["embed"] == pytest.approx(1.0)
    keys, heads = 2 * 11, 2 * 2
    attention = keys * 2 * 2 * 16 * 0.5e-9 + keys * 2 * 7e-9 + heads * (1e-6 + 3e-9 * 2 * 16)
    assert parts["attention"] == pytest.approx(2 * (1e-4 + attention))


def test_attention_visits_whole_tiles_and_panels() -> None:
    """Of 10 tokens with 2 heads each, 4 rows or 2 tokens together: half a token more each, and half of 15 keys."""
    cost = AttentionCost(Levels((1.0,), (Curve((1.0,), (1e-9,)),)), tile=4, panel=16)
    assert cost.padding(20, 10) == pytest.approx(0.5 + 7.5)
    assert cost.padding(2, 1) == pytest.approx(7.5)
    assert AttentionCost(cost.elements).padding(20, 10) == 0
    assert cost(1.0, 20, 3, 300.0, 2, 16, 64.0, 10) == pytest.approx((300 + 3 * 8) * 64 * 20e-9)


def test_a_model_larger_than_the_caches_slows_the_engine_down() -> None:
    cost = StepCost(1.0, 0.5, 0.25, 2.0, 0.125, 1e6)
    assert cost(10, 4, 0.0) == 1.0 + 4 * 0.5 + 6 * 0.25
    assert cost(4, 4, 5e5) == 1.0 + 4 * 0.5 + 0.5 * (2.0 + 4 * 0.125)
    assert cost(4, 4, 1e9) == 3.0 + 4 * 0.625
    assert replace(cost, prompt_s=8.0)(4, 4, 1e9, 2) == 19.0 + 4 * 0.625


def test_ragged_columns_cost_more_from_memory_alone() -> None:
    levels = Levels((1e6, 1e8), (Curve((1.0,), (1e-12,)), Curve((1.0,), (1e-12,))))
    cost = ProductCost(levels, ragged=Curve((1.0, 2.0), (1e-8, 0.0)), span=128)
    assert cost(1e8, 1, 0.0, 100.0, 576) == pytest.approx(1e-6)
    assert (
        cost(1e8, 1, 0.0, 100.0, 640) == cost(1e6, 1, 0.0, 100.0, 576) == cost(1e8, 9, 0.0, 100.0, 576) == 0
    )


def test_a_format_that_was_not_measured_costs_as_the_most_similar_one() -> None:
    """Reading costs in proportion to the bits, multiplying does not."""
    levels = Levels((1e6, 1e8), (Curve((1.0,), (1e-12,)), Curve((1.0,), (5e-12,))))
    profile = plain(
        products={
            "int4": ProductCost(levels, product="i8", bits=4.0),
            "int8": ProductCost(levels, product="i8", bits=8.0),
            "bf16": ProductCost(levels, product="bf16", bits=16.0),
        }
    )
    assert profile.product_cost("q5_0", "i8", 5.5) is profile.products["int4"]
    assert profile.product_cost("q6_k", "i8", 6.6) is profile.products["int8"]
    assert profile.product_cost("nf4", "bf16", 4.5) is profile.products["bf16"]
    assert profile.product_cost("f32", "f32", 32.0) is None
    cost = profile.products["int4"]
    assert cost(1e8, 1, 1e6, 0.0, 64) == pytest.approx(5e-6)
    assert cost(1e8, 1, 1e6, 0.0, 64, 5.0) == pytest.approx(1e-6 + 4e-6 * 5 / 4)
    assert cost(1e6, 1, 1e6, 0.0, 64, 5.0) == pytest.approx(1e-6)


def test_a_window_bounds_what_attention_reads() -> None:
    """Half of Gemma 2's layers see 4096 keys."""
    model = CostModel(on_gpu("shape:gemma-2-2b"), plain())
    near, far, further = (
        next(part.bytes for part in model.breakdown(decode_shape(1, context)) if part.op == "attention")
        for context in (4095, 8191, 12287)
    )
    assert far / near == pytest.approx(1.5) and further / near == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["tale", "shape:tinyllama-1.1b", "shape:gemma-2-2b"])
def test_decoding_by_sums_is_decoding_by_slices(name: str) -> None:
    model = CostModel(on_gpu(name), Profile.of_hardware(H100))
    assert model.decoding_s(6, 6 * 1001) == pytest.approx(model.decode_s(6, 1000))
    if not any(layout.window for layout, _ in model.work.groups):
        uneven = tuple(SliceShape(1, start, 1) for start in (1, 200, 3000))
        assert model.decoding_s(3, 3204) == pytest.approx(model.step_s(uneven))


def test_prefill_is_the_sum_of_its_chunks() -> None:
    model = CostModel(on_gpu("shape:tiny"), Profile.of_hardware(H100))
    steps = [(SliceShape(512, 0, 0),), (SliceShape(512, 512, 0),), (SliceShape(76, 1024, 1),)]
    assert model.prefill_s(1100, chunk=512) == pytest.approx(sum(map(model.step_s, steps)))
    assert model.prefill_s(76, start=1024) == pytest.approx(model.step_s(steps[-1]))


def test_codes_are_read_as_codes() -> None:
    profile = Profile.of_hardware(H100)
    wide, narrow = (CostModel(on_gpu("shape:llama-2-70b", one), profile) for one in (None, "int4-a16"))
    ratio = wide.decode_s(1, 10) / narrow.decode_s(1, 10)
    assert 3.3 < ratio < 4
    assert wide.prefill_s(8192) == pytest.approx(narrow.prefill_s(8192), rel=0.02)


def test_experts_are_read_where_tokens_go() -> None:
    work = on_gpu("shape:deepseek-v2-lite")
    model = CostModel(work, plain())
    names = {op.name for op in work.program.of_kind("experts")}
    for tokens in (1, 4, 1000):
        shape = (SliceShape(tokens, 0, tokens),)
        named = [part.bytes for part in model.breakdown(shape) if part.op in names]
        _, experts, top_k = work.experts[0]
        expected = sum(size for size, _, _ in work.experts) * (1 - (1 - top_k / experts) ** tokens)
        assert sum(named) == pytest.approx(expected)


def test_devices_share_the_work_and_pay_for_sums() -> None:
    link = Link(300e9, 8e-6)
    profile = replace(Profile.of_hardware(H100), link=link)
    work = on_gpu("shape:llama-2-70b")
    one, four = CostModel(work, profile), CostModel(work, profile, tp=4)
    shape = decode_shape(1, 1000)
    parts = {part.op: part for part in four.breakdown(shape)}
    alone = {part.op: part for part in one.breakdown(shape)}
    assert parts["gate_up"].bytes == pytest.approx(alone["gate_up"].bytes / 4)
    assert parts["attention"].bytes == pytest.approx(alone["attention"].bytes / 4)
    sums = parts["all-reduce"].seconds
    assert sums == pytest.approx(160 * (8e-6 + 1.5 * 8192 * 2 / 300e9))
    assert 2.5 < one.step_s(shape) / four.step_s(shape) < 4
    with pytest.raises(ConfigError, match="no link"):
        CostModel(work, replace(Profile.of_hardware(H100), link=None), tp=2)


def test_the_plain_formula_is_a_lower_bound() -> None:
    model = CostModel(on_gpu("shape:tinyllama-1.1b"), Profile.of_hardware(H100))
    for shape in (MIXED, decode_shape(64, 700), (SliceShape(4096, 0, 1),)):
        assert model.formula_s(shape) < model.step_s(shape)


def test_a_step_is_priced_quickly() -> None:
    """Counted, not timed: the ops of the program are walked once for each number of tokens."""
    model = CostModel(on_gpu("shape:tiny"), Profile.of_hardware(H100))
    priced: list[int] = []
    known = model._matrices
    model._matrices = lambda kinds, rows: priced.append(rows) or known(kinds, rows)  # type: ignore[method-assign,func-returns-value]
    for context in range(100):
        model.step_s(decode_shape(4, context))
    assert priced == [4, 4]
