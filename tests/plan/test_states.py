"""Slots of recurrent states: how many a pool has, and their bytes."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config import EngineConfig
from headrace.config_resolve import resolve
from headrace.models.spec import AttentionSpec, DeltaSpec, LayerSpec, MLPSpec, ModelSpec, NormSpec, RopeSpec
from headrace.plan.ledger import ledger
from headrace.plan.resolved import ResolvedConfig

GIB = 1 << 30


@pytest.fixture
def decide(make_spec: Any, make_machine: Any) -> Any:
    def run(spec: ModelSpec | None = None, **options: Any) -> ResolvedConfig:
        config = EngineConfig.from_kwargs(model="tale", **options)
        return resolve(config, spec or make_spec(), make_machine(GIB))

    return run


def test_states_are_slots_beside_the_blocks(decide: Any) -> None:
    """One a sequence, a copy for each, and one for each interval of the tokens that the full group holds."""
    spec = recurrent_spec()
    resolved = decide(spec=spec, num_kv_blocks=256, max_num_seqs=4, max_model_len=1024, block_size=16)
    full, states = sorted(resolved.kv_groups, key=lambda group: group.is_state)
    assert resolved.state_interval == states.interval == 512
    assert (full.num_blocks, states.num_blocks) == (256, 4 + 4 + 256 * 16 // 512)
    layout = next(layout for layout in spec.kv_shapes if layout.state is not None)
    slot = 2 * (3 * (2 * 2 * 8 + 4 * 16) + 4 * 8 * 16) * 4
    assert layout.slot_elements * 4 == slot
    lines = {line.name: line for line in ledger(spec, resolved).kv_pools}
    assert lines["state"].bytes == states.num_blocks * slot
    assert (
        "one a sequence, and copies at the ends of prompts and of answers and every 512 tokens"
        in lines["state"].how
    )
    other = decide(
        spec=spec, num_kv_blocks=256, max_num_seqs=4, max_model_len=1024, block_size=16, state_interval=100
    )
    assert other.state_interval == 112  # whole blocks


def test_without_a_prefix_cache_no_states_are_kept(decide: Any) -> None:
    resolved = decide(
        spec=recurrent_spec(), num_kv_blocks=256, max_num_seqs=4, block_size=16, enable_prefix_caching=False
    )
    states = next(group for group in resolved.kv_groups if group.is_state)
    assert resolved.state_interval is None
    assert states.num_blocks == 4 + 4


def test_models_without_states_have_no_interval(decide: Any) -> None:
    assert decide(state_interval=64).state_interval is None


def recurrent_spec() -> ModelSpec:
    delta = DeltaSpec(num_heads=4, num_key_heads=2, key_dim=8, value_dim=16, width=4, norm=NormSpec(1e-6))
    attention = AttentionSpec(4, 2, 16, 0.25, RopeSpec(10_000.0, 16))
    layers = tuple(LayerSpec(mixer, MLPSpec(64)) for mixer in (delta, attention, delta))
    return ModelSpec("qwen3_5", 64, 100, 2048, layers, NormSpec(1e-6), False, "float32")
