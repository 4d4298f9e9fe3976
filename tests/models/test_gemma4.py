"""Configs of Gemma 4: shared keys and values, sizes of heads by layer, and fields that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.families import read_spec, weight_names
from headrace.models.rope import inverse_frequencies
from headrace.models.shapes import SHAPES
from headrace.models.spec import MLPSpec, ModelSpec
from headrace.plan.weights import parameter_count
from headrace.program.lower import lower
from tests.tiny_checkpoint import CONFIGS

CONFIG = CONFIGS["gemma4"]


def spec_of(**fields: Any) -> ModelSpec:
    return read_spec({**CONFIG, **fields})


def test_the_last_layers_share_with_the_last_one_of_their_type() -> None:
    spec = spec_of()
    assert [layer.mixer.shares for layer in spec.layers] == [None, None, None, 1, 2, 1]
    assert [layout.layers for layout in spec.kv_shapes] == [(0, 2), (1,)]
    assert [(layout.num_kv_heads, layout.head_dim) for layout in spec.kv_shapes] == [(2, 16), (1, 32)]
    wide = [layer.feed_forward for layer in spec.layers]
    assert [mlp.intermediate_size for mlp in wide if isinstance(mlp, MLPSpec)] == [128] * 3 + [256] * 3
    tensors = lower(spec, weight_names(spec)).tensors()
    assert "model.layers.2.self_attn.v_proj.weight" in tensors
    assert "model.layers.1.self_attn.v_proj.weight" not in tensors  # its keys are its values
    assert not any(f"model.layers.3.self_attn.{one}_proj.weight" in tensors for one in "kv")


def test_sizes_by_layer_as_transformers_writes_them() -> None:
    fields = {name: value for name, value in CONFIG.items() if "global" not in name}
    own = {str(index): {"head_dim": 32, "num_key_value_heads": 1} for index in (1, 3, 5)}
    assert read_spec({**fields, "per_layer_config": own}) == spec_of()


def test_without_a_type_the_last_layer_and_each_sixth_one_are_full() -> None:
    spec = spec_of(layer_types=None, num_hidden_layers=8, num_kv_shared_layers=0)
    assert [layer.mixer.window for layer in spec.layers] == [24] * 5 + [None, 24, None]


def test_experts_stand_beside_the_dense_half_of_every_layer() -> None:
    spec = spec_of()
    assert all(layer.beside is not None and layer.beside.router.top_k == 2 for layer in spec.layers)
    program = lower(spec, weight_names(spec))
    kinds = [op.kind for op in program.ops if op.layer == 0]
    assert kinds.count("combine") == 1 and kinds.count("route") == 1
    shapes = program.tensors()
    assert shapes["model.layers.5.experts.7.down_proj.weight"] == (spec.hidden_size, 48)
    assert shapes["model.layers.0.router.per_expert_scale"] == (8,)
    assert shapes["model.layers.0.router.scale"] == (spec.hidden_size,)


def test_proportional_rope_leaves_the_last_pairs() -> None:
    frequencies, factor = inverse_frequencies(spec_of().layers[1].mixer.rope)
    assert len(frequencies) == 16 and factor == 1.0
    assert frequencies[:4] == [1e6 ** (-2 * pair / 32) for pair in range(4)]
    assert frequencies[4:] == [0.0] * 12


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gemma-4-e2b", 4.6),
        ("gemma-4-e4b", 7.5),
        ("gemma-4-12b", 11.9),
        ("gemma-4-26b-a4b", 25.2),
        ("gemma-4-31b", 30.7),
    ],
)
def test_published_sizes(name: str, billions: float) -> None:
    """Without the parts that see and hear."""
    spec = read_spec(SHAPES[name])
    assert round(parameter_count(lower(spec, weight_names(spec))) / 1e9, 1) == billions


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"num_kv_shared_layers": 5}, CheckpointError, "full_attention layers share KV that no earlier"),
        ({"num_kv_shared_layers": 6}, CheckpointError, "between 0 and 5"),
        ({"vocab_size_per_layer_input": 100}, CheckpointError, "must not be below vocab_size"),
        ({"global_head_dim": 31}, CheckpointError, "even"),
        ({"use_bidirectional_attention": "all"}, UnsupportedModel, "both directions"),
        ({"num_experts": None}, CheckpointError, "lacks the field num_experts"),
        (
            {"top_k_experts": 9},
            CheckpointError,
            "top_k_experts 9 in config.json is more than the 8",
        ),
        ({"moe_intermediate_size": 0}, CheckpointError, "moe_intermediate_size"),
        ({"per_layer_config": {"1": {"rope_theta": 1}}}, UnsupportedModel, "'rope_theta' of a layer"),
        ({"per_layer_config": {"1": 3}}, CheckpointError, "an object"),
        ({"per_layer_config": {"3": {"head_dim": 64}}}, CheckpointError, "share KV that no earlier"),
    ],
)
def test_refusals(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        spec_of(**fields)
