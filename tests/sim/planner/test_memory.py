"""Bytes of the plan against those of the engine's own ledger, and what placements share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.config import EngineConfig
from headrace.config_resolve import resolve
from headrace.plan.eviction import choose_sizes
from headrace.plan.hardware import Machine
from headrace.plan.hardware_table import find_hardware, this_hardware
from headrace.plan.ledger import ledger
from headrace.plan.units import GIB
from headrace.sim.planner.formats import store
from headrace.sim.planner.memory import Footprint, Placement, allowed
from headrace.sim.planner.model import open_model

ZEN4 = Machine(
    "cpu", "CPU", 256 * GIB, 256 * GIB, 2, flags=frozenset({"avx512_bf16"}), kernels=("avx512", "portable")
)
INTEL = replace(ZEN4, kernels=("avx512_vnni", "avx512", "portable"))
"""Computes bf16 checkpoints in float32, and keeps keys and values in bf16."""


@pytest.mark.parametrize("machine", [ZEN4, INTEL], ids=["zen4", "intel"])
@pytest.mark.parametrize("name", ["shape:tiny", "shape:llama-2-7b", "shape:deepseek-v2-lite-4l"])
@pytest.mark.parametrize("format", ["stored", "int8", "int4"])
def test_the_plan_counts_what_the_engine_counts(name: str, format: str, machine: Machine) -> None:
    model = open_model(name)
    stored = store(model, this_hardware(machine), format)
    footprint = Footprint(stored, this_hardware(machine), Placement())
    config = EngineConfig(
        name,
        quantization=None if format == "stored" else format,
        max_model_len=512,
        max_num_seqs=16,
        kv_cache_memory=footprint.kv(16, 512),
    )
    resolved = resolve(config, model.spec, machine)
    counted = ledger(model.spec, resolved)
    assert resolved.kernels == machine.kernels[0]
    assert resolved.dtype == stored.memory.dtype and resolved.kv_cache_dtype == stored.memory.kv.dtype
    assert footprint.weights == stored.weight_bytes == counted.weight_bytes
    assert footprint.kv_token == counted.kv_token_bytes
    assert footprint.kv(16, 512) == counted.kv_pool_bytes
    assert footprint.activations(16) == counted.activation_bytes


def test_evicted_tokens_leave_room_as_in_the_engine() -> None:
    """One sequence has its whole prompt and what stays, each further one what it holds after evicting."""
    model, hardware = open_model("shape:smollm2-135m"), this_hardware(ZEN4)
    sizes = choose_sizes(256, None, None, None, None)
    plain = Footprint(store(model, hardware), hardware, Placement())
    evicting = replace(plain, eviction=sizes)
    config = EngineConfig(
        model.name, max_model_len=4096, max_num_seqs=16, kv_eviction="snapkv", kv_eviction_budget=256
    )
    counted = ledger(model.spec, resolve(config, model.spec, ZEN4))
    assert counted.kv_after_eviction is not None
    one = evicting.kv(1, 4096)
    assert one == counted.kv_per_sequence.bytes > plain.kv(1, 4096)
    assert evicting.kv(5, 4096) - one == 4 * counted.kv_after_eviction.bytes
    assert evicting.activations(16) + evicting.evicting(16, 4096) == counted.activation_bytes
    small = replace(hardware, memory=GIB)
    few, many = (replace(one, hardware=small).largest_batch(4096) for one in (plain, evicting))
    assert many > 2 * few > 0
    assert evicting.held(4096) == 256 + 32 and evicting.held(200) == 200
    assert evicting.kv(3, 256) == plain.kv(3, 256) and not evicting.evicting(3, 256)


def test_int8_keys_are_half_as_large_and_scales_count() -> None:
    model, hardware = open_model("shape:llama-3.1-8b"), this_hardware(ZEN4)
    wide = Footprint(store(model, hardware), hardware, Placement())
    narrow = Footprint(store(model, hardware, kv="int8"), hardware, Placement())
    assert wide.kv_token == 32 * 2 * 8 * 128 * 2
    assert narrow.kv_token == 32 * 2 * 8 * (128 + 4)


def test_devices_share_weights_and_heads() -> None:
    model, hardware = open_model("shape:llama-3.1-70b"), find_hardware("8xh100")
    one, eight = (
        Footprint(store(model, hardware), hardware, place) for place in (Placement(), Placement(8, 1))
    )
    norms = 161 * 8192 * 4  # are not cut
    assert eight.weights == pytest.approx((one.weights - norms) / 8 + norms)
    assert eight.kv_token * 8 == one.kv_token and eight.kv(3, 1000) * 8 == one.kv(3, 1000)
    pipeline = Footprint(store(model, hardware), hardware, Placement(1, 8))
    assert one.weights / 8 < pipeline.weights < one.weights / 8 * 1.1  # the head lies on one of them
    assert not one.fits(1, 1) and eight.fits(1, 1) and pipeline.fits(1, 1)


def test_a_latent_is_not_cut() -> None:
    model, hardware = open_model("shape:deepseek-v3"), find_hardware("8xh200")
    stored = store(model, hardware, "fp8")
    one, eight = (Footprint(stored, hardware, place) for place in (Placement(), Placement(8, 1)))
    assert one.kv_token == eight.kv_token == 61 * 576 * 2
    assert model.parameters == 671_026_419_200 and 37e9 < model.active_parameters < 38e9


def test_more_devices_than_heads_repeat_them() -> None:
    model, hardware = open_model("shape:qwen3-30b-a3b"), find_hardware("8xh100")
    stored = store(model, hardware)
    four, eight = (Footprint(stored, hardware, Placement(count, 1)) for count in (4, 8))
    assert four.kv_token == eight.kv_token  # 4 KV heads


def test_placements_divide_the_heads() -> None:
    model = open_model("shape:llama-2-13b")  # 40 heads
    places = allowed(model.program, find_hardware("8xh100"))
    assert {(one.tp, one.pp) for one in places} == {
        (tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8) if tp * pp <= 8
    }
    assert {one.tp for one in allowed(open_model("shape:smollm2-135m").program, find_hardware("8xh100"))} == {
        1
    }


def test_the_largest_batch_and_context_are_the_largest() -> None:
    model, hardware = open_model("shape:llama-3.1-8b"), find_hardware("l4")
    footprint = Footprint(store(model, hardware), hardware, Placement())
    batch, context = footprint.largest_batch(1280), footprint.largest_context(1)
    assert footprint.fits(batch, 1280) and not footprint.fits(batch + 1, 1280)
    assert footprint.fits(1, context) and not footprint.fits(1, context + 1)
    needed = footprint.needed(batch, 1280)
    exact = Footprint(footprint.stored, replace(hardware, memory=needed + 2), Placement())
    assert exact.fits(batch, 1280)
    short = Footprint(footprint.stored, replace(hardware, memory=needed - 10_000_000), Placement())
    assert not short.fits(batch, 1280)


def test_windows_bound_the_memory_of_long_sequences() -> None:
    model, hardware = open_model("shape:gemma-3-27b"), find_hardware("h100")
    footprint = Footprint(store(model, hardware), hardware, Placement())
    short, long = footprint.kv(1, 32_768), footprint.kv(1, 65_536)
    full = sum(1 for layer in model.spec.layers if layer.mixer.window is None)  # type: ignore[union-attr]
    assert long - short == full * 2 * 16 * 128 * 2 * 32_768
