"""Configs of Llama 4, of families with linear biases and of Granite 4: what they come to, and fields that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headrace.errors import HeadraceError
from headrace.models.families import read_spec
from headrace.models.family_checkpoint import open_checkpoint
from headrace.models.rope import alibi_slopes
from headrace.models.shapes import SHAPES
from headrace.models.spec import AttentionSpec, ExpertsSpec, MLPSpec
from tests import tiny_checkpoint

TINY = {
    **SHAPES["llama-4-scout"], "hidden_size": 32, "intermediate_size": 16, "intermediate_size_mlp": 48,
    "num_hidden_layers": 5, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 64,
    "num_local_experts": 3, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def mixers(config: Any) -> list[AttentionSpec]:
    return [layer.mixer for layer in read_spec(config).layers if isinstance(layer.mixer, AttentionSpec)]


def test_every_fourth_layer_has_no_positions_and_sees_everything() -> None:
    spec = read_spec(SHAPES["llama-4-scout"])
    found = [(one.chunked, one.window, one.rope is None, one.temperature is None) for one in mixers(TINY)]
    assert found == [(True, 8192, False, True)] * 3 + [(False, None, True, False), (True, 8192, False, True)]
    assert [(layout.name, len(layout.layers)) for layout in spec.kv_shapes] == [
        ("window-8192", 36),
        ("full", 12),
    ]


def test_layers_with_experts_take_turns() -> None:
    layers = read_spec({**TINY, "interleave_moe_layer_step": 2}).layers
    wide = [layer.feed_forward for layer in layers]
    assert [isinstance(one, ExpertsSpec) for one in wide] == [False, True, False, True, False]
    assert [one.intermediate_size for one in wide if isinstance(one, MLPSpec)] == [48] * 3


def test_tensors_of_the_text_part_are_found(tmp_path: Path) -> None:
    """As published: beside an image encoder, matrices of all experts together as [columns, rows]."""
    (tmp_path / "plain").mkdir()
    tiny_checkpoint.write(tmp_path / "plain", {**TINY, "model_type": "llama4_text"})
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    stored = {"vision_model.class_embedding": np.zeros(4, np.float32)}
    for name, values in plain.items():
        if ".experts." not in name:
            stored[f"language_model.{name}"] = values
    for layer in range(5):
        module = f"model.layers.{layer}.feed_forward.experts"

        def together(part: str, module: str = module) -> np.ndarray[Any, Any]:
            return np.stack([plain[f"{module}.{expert}.{part}_proj.weight"].T for expert in range(3)])

        both = np.concatenate((together("gate"), together("up")), axis=2)
        stored[f"language_model.{module}.gate_up_proj"] = np.ascontiguousarray(both)
        stored[f"language_model.{module}.down_proj"] = np.ascontiguousarray(together("down"))
    (tmp_path / "whole").mkdir()
    save_file(stored, tmp_path / "whole" / "model.safetensors")
    config = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "text_config": {**TINY, "model_type": "llama4_text"},
    }
    del config["text_config"]["architectures"]
    (tmp_path / "whole" / "config.json").write_text(json.dumps(config))
    assert read_spec(config) == read_spec(TINY)
    found = open_checkpoint(tmp_path / "whole", config)
    assert set(found.names()) == set(plain)
    for name, values in plain.items():
        assert np.array_equal(found.array(name), values), name


def test_slopes_fall_by_powers_of_two() -> None:
    assert alibi_slopes(4, 8.0) == (2**-2, 2**-4, 2**-6, 2**-8)
    assert alibi_slopes(3, 8.0) == (2**-4, 2**-8, 2**-2)  # every second one of four, then the others
    assert alibi_slopes(1, 8.0) == (2**-8,)


BLOOM = {
    "architectures": ["BloomForCausalLM"],
    "hidden_size": 64,
    "n_head": 4,
    "n_layer": 2,
    "vocab_size": 99,
}
MPT = {
    "architectures": ["MptForCausalLM"], "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 99,
    "max_seq_len": 64, "attn_config": {"alibi": True, "alibi_bias_max": 16},
}  # fmt: skip
GRANITE = {
    **SHAPES["granite-3.3-8b"], "architectures": ["GraniteMoeHybridForCausalLM"], "num_hidden_layers": 2,
    "num_local_experts": 0, "layer_types": ["attention"] * 2, "shared_intermediate_size": 64,
}  # fmt: skip


def test_old_names_of_sizes_and_larger_slopes() -> None:
    old = {"n_embed": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    names = {name: value for name, value in BLOOM.items() if name in ("architectures", "vocab_size")}
    assert read_spec({**names, **old}) == read_spec(BLOOM)
    assert [one.alibi for one in mixers(MPT)] == [16.0] * 2


def test_granite_4_may_have_no_positions() -> None:
    assert [one.rope is None for one in mixers(GRANITE)] == [True] * 2
    assert [one.rope is None for one in mixers({**GRANITE, "position_embedding_type": "rope"})] == [False] * 2


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (TINY, {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        (TINY, {"no_rope_layers": [2] * 5}, "no_rope_layers"),
        (TINY, {"attention_chunk_size": 0}, "attention_chunk_size"),
        (TINY, {"moe_layers": [5]}, "moe_layers"),
        (TINY, {"interleave_moe_layer_step": 0}, "interleave_moe_layer_step"),
        (TINY, {"num_experts_per_tok": 4}, "more than the 3 of num_local_experts"),
        (TINY, {"layer_types": ["sliding_attention"] * 5}, "'sliding_attention'"),
        (TINY, {"floor_scale": 0}, "floor_scale"),
        (BLOOM, {"n_head": 3}, "multiple of the 3 heads"),
        (
            BLOOM,
            {"apply_residual_connection_post_layernorm": True},
            "apply_residual_connection_post_layernorm",
        ),
        (MPT, {"attn_config": {"alibi": False}}, "alibi"),
        (MPT, {"attn_config": {"clip_qkv": 6}}, "clip_qkv"),
        (MPT, {"attn_config": {"alibi_bias_max": 1e9}}, "alibi_bias_max"),
        (MPT, {"no_bias": False}, "no_bias"),
        (GRANITE, {"layer_types": ["mamba", "attention"]}, "'mamba'"),
        (GRANITE, {"layer_types": None}, "'mamba'"),
        (GRANITE, {"num_local_experts": 8}, "num_local_experts"),
    ],
)
def test_refusals(config: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadraceError, match=message) as caught:
        read_spec({**config, **fields})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
