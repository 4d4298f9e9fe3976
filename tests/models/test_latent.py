"""Latent attention: what its configs may say, its matrices of heads, and what a token's cache takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace import LLM, SamplingParams
from headrace.build import pack
from headrace.config import EngineConfig
from headrace.errors import ConfigError, ModelError
from headrace.models.families import read_spec, weight_names
from headrace.models.loader import head_matrices
from headrace.models.shapes import SHAPES
from headrace.models.spec import ExpertsSpec, LatentSpec
from headrace.models.streaming import with_streaming
from headrace.ops import reference
from headrace.ops.candidates import DEFAULT_TABLE
from headrace.ops.table import op_keys
from headrace.plan.formats import kv_format
from headrace.plan.hardware import this_machine
from headrace.plan.kernels import op_facts
from headrace.plan.weight_formats import weight_formats
from headrace.program.lower import lower
from tests import needs
from tests.tiny_checkpoint import CONFIGS

DEEPSEEK: Mapping[str, Any] = CONFIGS["deepseek"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kv_lora_rank": 0}, "kv_lora_rank"),
        ({"kv_lora_rank": 1 << 40}, "kv_lora_rank"),
        ({"kv_lora_rank": 1024, "qk_rope_head_dim": 64}, "at most 1024 together"),
        ({"qk_rope_head_dim": 17}, "17 of 17 channels"),
        ({"q_lora_rank": -1}, "q_lora_rank"),
        ({"v_head_dim": "many"}, "v_head_dim"),
        ({"n_group": 4}, "cannot be 4 equal groups"),
        ({"topk_group": 4}, "more than the 3 of n_group"),
        ({"n_group": 6, "topk_group": 2}, "no two best scores"),
        ({"num_experts_per_tok": 5}, "hold the 5 of num_experts_per_tok"),
        ({"num_experts_per_tok": 7}, "more than the 6"),
        ({"n_shared_experts": 1 << 30}, "n_shared_experts"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method 'greedy'"),
        ({"mlp_bias": True}, "mlp_bias"),
    ],
)
def test_a_config_that_lies_is_refused_in_one_sentence(fields: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        read_spec({**DEEPSEEK, **fields})
    assert "\n" not in str(caught.value)


def test_layers_of_glm_have_known_types() -> None:
    config = {**DEEPSEEK, "architectures": ["Glm4MoeLiteForCausalLM"]}
    spec = read_spec({**config, "mlp_layer_types": ["sparse", "dense", "sparse"]})
    assert [isinstance(layer.feed_forward, ExpertsSpec) for layer in spec.layers] == [True, False, True]
    with pytest.raises(ModelError, match="mlp_layer_types"):
        read_spec({**config, "mlp_layer_types": ["sparse", "dense", "wide"]})


def test_matrices_of_heads_are_rows_of_one_tensor() -> None:
    """Of head h, the product with its matrices is that with its rows of kv_b_proj."""
    spec = read_spec(DEEPSEEK)
    program = lower(spec, weight_names(spec))
    key_up, value_up = (
        next(w for w in program.weights if w.name == f"0.{name}") for name in ("key_up", "value_up")
    )
    assert (
        [*key_up.tensors()]
        == [*value_up.tensors()]
        == [("model.layers.0.self_attn.kv_b_proj.weight", (4 * (64 + 16), 64))]
    )
    tensor = torch.randn(4 * 80, 64, dtype=torch.float64)
    latent, query = torch.randn(64, dtype=torch.float64), torch.randn(1, 4, 64, dtype=torch.float64)
    made = (tensor @ latent).view(4, 80)
    absorbed = reference.heads_linear(query, head_matrices(tensor, key_up))
    assert torch.allclose(absorbed[0] @ latent, (query[0] * made[:, :64]).sum(-1))
    values = reference.heads_linear(latent.expand(1, 4, 64), head_matrices(tensor, value_up))
    assert torch.allclose(values[0], made[:, 64:])


def test_matrices_of_heads_stay_floats() -> None:
    spec = read_spec(DEEPSEEK)
    program = lower(spec, weight_names(spec))
    for dtype, name in (("float32", "f32"), ("bfloat16", "bf16")):
        formats = weight_formats(spec, program, dtype, "int4")
        assert formats is not None and formats.of("0.out").quantized
        assert formats.of("0.key_up").storage == formats.of("2.value_up").storage == name


@pytest.mark.parametrize(
    ("shape", "bytes_a_token", "parameters"),
    [("deepseek-v2-lite", 27 * 576 * 2, 15.7e9), ("deepseek-v3", 61 * 576 * 2, 671e9)],
)
def test_what_well_known_models_take(shape: str, bytes_a_token: int, parameters: float) -> None:
    spec = read_spec(SHAPES[shape])
    (layout,) = spec.kv_shapes
    assert kv_format("bfloat16", native=True).token_bytes(layout) == bytes_a_token
    assert kv_format("int8", native=True).token_bytes(layout) == bytes_a_token // 2 + 4 * len(layout.layers)
    counted = {name: shape for w in lower(spec, weight_names(spec)).weights for name, shape in w.tensors()}
    assert sum(torch.Size(one).numel() for one in counted.values()) == pytest.approx(parameters, rel=0.005)


def test_scores_of_long_contexts_are_scaled_as_yarn_says() -> None:
    mixer = read_spec(SHAPES["deepseek-v2-lite"]).layers[0].mixer
    assert isinstance(mixer, LatentSpec)
    assert mixer.scale == pytest.approx(192**-0.5 * (0.1 * 0.707 * 3.6888794541139363 + 1) ** 2)


def test_a_stream_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="latent attention"):
        with_streaming(read_spec(DEEPSEEK), 4, 24)


def test_the_layers_that_predict_more_tokens_are_ignored() -> None:
    names = weight_names(read_spec(DEEPSEEK))
    assert names.ignores("model.layers.61.embed_tokens.weight", 61)
    assert not names.ignores("model.layers.6.mlp.gate.weight", 61)


GREEDY = SamplingParams(max_tokens=8, temperature=0.0, logprobs=2, prompt_logprobs=1)


def outputs(model: str | Path, **options: Any) -> Any:
    llm = LLM(str(model), show_progress=False, num_threads=1, max_model_len=128, **options)
    return [
        (one.prompt_logprobs, one.outputs[0].token_ids, one.outputs[0].logprobs)
        for one in llm.generate(["Once upon a time", "The fox"], GREEDY, use_tqdm=False)
    ]


def test_a_packed_folder_gives_the_bits_of_its_source(tiny_models: Mapping[str, str], tmp_path: Path) -> None:
    needs.native()
    source = tiny_models["deepseek"]
    pack(EngineConfig(source, quantization="int8", num_threads=1), tmp_path / "packed")
    assert outputs(tmp_path / "packed") == outputs(source, quantization="int8")


def test_heads_that_kernels_cannot_read_are_named() -> None:
    spec = read_spec({**DEEPSEEK, "qk_nope_head_dim": 80})
    facts = op_facts(spec, replace(this_machine(), kernels=("avx2",), kernels_note=""))
    refused = DEFAULT_TABLE.suite(op_keys("cpu", "float32", ("f32",)), facts, None)
    assert refused.name is None and "keys of 80 channels" in refused.why
