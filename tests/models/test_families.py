"""How the families read a config.json, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from headrace.core.types import Retention
from headrace.errors import CheckpointError, ModelError, UnsupportedModel
from headrace.models.families import FAMILIES, read_spec, weight_names
from headrace.program.lower import lower

Config = dict[str, Any]


def test_llama_spec(llama_config: Config) -> None:
    spec = read_spec({**llama_config, "bos_token_id": 1, "eos_token_id": [2, 3], "torch_dtype": "bfloat16"})
    mixer = spec.layers[0].mixer
    assert (spec.family, len(spec.layers), spec.max_position) == ("llama", 2, 64)
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.scale) == (4, 2, 4, 0.5)
    assert (mixer.rope.theta, mixer.rope.dim, mixer.rope.kind) == (10_000.0, 4, "default")
    assert (spec.bos_id, spec.eos_ids, spec.checkpoint_dtype) == (1, (2, 3), "bfloat16")
    assert not (mixer.qkv_bias or mixer.out_bias or mixer.qk_norm or spec.tie_embeddings)
    assert mixer.retention is Retention.FULL


def test_stop_ids_of_the_generation_config_are_added(llama_config: Config) -> None:
    spec = read_spec({**llama_config, "eos_token_id": 2}, {"eos_token_id": [7, 2]})
    assert spec.eos_ids == (2, 7)


def test_model_type_serves_where_no_architecture_is_named(llama_config: Config) -> None:
    del llama_config["architectures"]
    assert read_spec(llama_config).family == "llama"


def test_biases(llama_config: Config) -> None:
    mixer = read_spec({**llama_config, "attention_bias": True}).layers[0].mixer
    assert mixer.qkv_bias and mixer.out_bias
    qwen = read_spec({**llama_config, "architectures": ["Qwen2ForCausalLM"]}).layers[0].mixer
    assert qwen.qkv_bias and not qwen.out_bias


def test_qwen3_has_head_norms_and_its_own_head_dim(llama_config: Config) -> None:
    mixer = read_spec({**llama_config, "architectures": ["Qwen3ForCausalLM"]}).layers[0].mixer
    assert mixer.qk_norm and mixer.head_dim == 128


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 9}, [9, 9]),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, [None, None]),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 9}, [None, None]),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 9,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            [None, 9],
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 9,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            [9, None],
        ),
        ({"sliding_window": 9}, [None, None]),  # Llama has none, whatever its config says
    ],
)
def test_windows(llama_config: Config, fields: Config, windows: list[int | None]) -> None:
    spec = read_spec({**llama_config, **fields})
    assert [layer.mixer.window for layer in spec.layers] == windows
    assert len(spec.kv_shapes) == len(set(windows))
    for layout in spec.kv_shapes:
        assert [windows[index] for index in layout.layers] == [layout.window] * len(layout.layers)
        assert layout.retention is (Retention.FULL if layout.window is None else Retention.WINDOW)


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "default"}, 64),
        ({"type": "linear", "factor": 4}, 256),
        ({"rope_type": "dynamic", "factor": 2.0}, 128),
        ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}, 256),
        ({"rope_type": "yarn", "factor": 2.0}, 128),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 64),
    ],
)
@pytest.mark.parametrize("layout", ["rope_scaling", "rope_parameters"])
def test_longest_context_and_both_layouts(
    llama_config: Config, scaling: Config, longest: int, layout: str
) -> None:
    outer = {"rope_theta": 500.0} if layout == "rope_scaling" else {}
    inner = {} if outer else {"rope_theta": 500.0}
    spec = read_spec({**llama_config, **outer, layout: {**scaling, **inner}})
    assert spec.max_position == longest
    assert spec.layers[0].mixer.rope.theta == 500.0
    assert spec.layers[0].mixer.rope.kind == scaling.get("rope_type", scaling.get("type"))


HUGE = 10**400

BAD_VALUES = [
    ("hidden_size", None, "lacks the field hidden_size"),
    ("hidden_size", 0, "between 1 and"),
    ("hidden_size", -16, "got -16"),
    ("hidden_size", "16", "whole number"),
    ("hidden_size", True, "whole number"),
    ("hidden_size", 16.5, "whole number"),
    ("hidden_size", HUGE, "about 400 digits"),
    ("hidden_size", float("nan"), "whole number"),
    ("hidden_size", 18, "multiple of num_attention_heads"),
    ("hidden_size", 1 << 20, "between 1 and"),
    ("num_hidden_layers", 1025, "between 1 and 1024"),
    ("num_attention_heads", 0, "between 1 and"),
    ("num_key_value_heads", 3, "multiple of num_key_value_heads"),
    ("num_key_value_heads", 8, "multiple of num_key_value_heads"),
    ("vocab_size", 1 << 23, "between 1 and"),
    ("intermediate_size", [], "whole number"),
    ("max_position_embeddings", 1 << 40, "between 1 and"),
    ("head_dim", 5, "even"),
    ("head_dim", 2048, "between 1 and"),
    ("rms_norm_eps", 0, "a number between"),
    ("rms_norm_eps", float("inf"), "a number between"),
    ("rope_theta", 0.0, "a number between"),
    ("rope_theta", float("nan"), "a number between"),
    ("tie_word_embeddings", "yes", "true or false"),
    ("eos_token_id", 40, "below vocab_size"),
    ("eos_token_id", list(range(40)) * 2, "below vocab_size"),
    ("eos_token_id", {"a": 1}, "below vocab_size"),
    ("bos_token_id", -1, "below vocab_size"),
    ("rope_scaling", [1], "an object"),
    ("rope_scaling", {"rope_type": "linear"}, "lacks the field factor"),
    ("rope_scaling", {"rope_type": "linear", "factor": 0.5}, "a number between"),
    ("rope_scaling", {"rope_type": "linear", "factor": HUGE}, "about 400 digits"),
    ("rope_scaling", {"rope_type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 5}, "beta_fast"),
    (
        "rope_scaling",
        {"rope_type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 3},
        "must not be below",
    ),
    (
        "rope_scaling",
        {"rope_type": "yarn", "factor": 4000.0, "original_max_position_embeddings": 1 << 20},
        "context",
    ),
    ("rope_scaling", {"rope_type": 3}, "must be text"),
    ("hidden_act", 3, "must be text"),
]

UNSUPPORTED = [
    ("architectures", ["FalconForCausalLM"], "is not supported; the nearest that are: "),
    ("architectures", ["LlamaForSequenceClassification"], "is not supported"),
    ("architectures", [["x"]], "is not supported"),
    ("architectures", [HUGE], "is not supported"),
    ("hidden_act", "quick_gelu", "activation 'quick_gelu'"),
    ("torch_dtype", "float8_e4m3fn", "dtype"),
    ("rope_scaling", {"rope_type": "mrope", "factor": 2}, "rope type 'mrope'"),
    ("rope_scaling", {"full_attention": {"rope_type": "default"}}, "differ between layer types"),
    ("rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("partial_rotary_factor", 0.25, "partial_rotary_factor"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD_VALUES)
def test_absurd_values(llama_config: Config, name: str, value: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        read_spec({**llama_config, name: value})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("name", "value", "words"), UNSUPPORTED)
def test_unsupported_features(llama_config: Config, name: str, value: Any, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        read_spec({**llama_config, name: value})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"]}, "no sliding window"),
        ({"layer_types": ["full_attention"]}, "list of 2 texts"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer type 'linear_attention'"),
        ({"use_sliding_window": True, "sliding_window": 0}, "between 1 and"),
    ],
)
def test_bad_layer_types(llama_config: Config, fields: Config, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_spec({**llama_config, "architectures": ["Qwen3ForCausalLM"], **fields})


def test_mistral_with_layer_types_is_refused(llama_config: Config) -> None:
    fields = {"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"] * 2}
    with pytest.raises(UnsupportedModel, match="layer_types"):
        read_spec({**llama_config, **fields})


LATENTS = {
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "num_experts_per_tok": 2,
}

EXPERTS = {
    "num_experts": 8,
    "num_local_experts": 8,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}


def test_every_family_has_names(llama_config: Config) -> None:
    sizes = {"n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 64, "sliding_window": 8, "head_dim": 8}
    mpt = {"d_model": 16, "n_heads": 4, "n_layers": 2}
    dense = {"num_local_experts": 0, "layer_types": ["attention"] * llama_config["num_hidden_layers"]}
    for name in FAMILIES:
        own = dense if FAMILIES[name].name == "granitemoehybrid" else {}
        spec = read_spec(
            {**llama_config, **sizes, **mpt, **EXPERTS, **LATENTS, **own, "architectures": [name]}
        )
        assert FAMILIES[spec.family].read is FAMILIES[name].read
        tensors = lower(spec, weight_names(spec)).tensors()
        assert tensors and not any(tensor.startswith(".") for tensor in tensors)


def test_reading_configs_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "import headrace.models.families, headrace.models.source, headrace.models.streaming\n"
        "assert 'torch' not in sys.modules and 'huggingface_hub' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
