"""Checkpoints of small random models, as transformers saves them but without importing it, which takes seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from headrace.models.families import read_spec, weight_names
from headrace.program.lower import lower

_SIZES: dict[str, Any] = {
    "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "float32", "sliding_window": 24,
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "mistral": _SIZES | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    "qwen2-hybrid": _SIZES
    | {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "max_window_layers": 2,
    },
    "gemma4": _SIZES
    | {
        "model_type": "gemma4_text",
        "architectures": ["Gemma4ForCausalLM"],
        "num_hidden_layers": 6,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 24,
        "vocab_size_per_layer_input": 2048,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 48,
        "tie_word_embeddings": True,
    },
    "deepseek": _SIZES
    | {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 3,
        "topk_group": 2,
        "moe_intermediate_size": 32,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
}
"""By name: one with a window, one with both kinds of layer, one whose last layers share keys and values, with
experts beside a dense half, one with latent attention and experts."""

_HYBRID = _SIZES | {"sliding_window": None, "head_dim": 16, "num_hidden_layers": 3}

RECURRENT: dict[str, dict[str, Any]] = {
    "delta": _HYBRID
    | {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "partial_rotary_factor": 0.5,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 32,
    },
    "convolution": _HYBRID
    | {
        "model_type": "lfm2",
        "architectures": ["Lfm2ForCausalLM"],
        "norm_eps": 1e-6,
        "layer_types": ["conv", "full_attention", "conv"],
        "tie_embedding": False,
    },
}
"""By name: models with recurrent layers beside one that attends."""

PARALLEL: dict[str, dict[str, Any]] = {
    "cohere2": _SIZES
    | {
        "model_type": "cohere2",
        "architectures": ["Cohere2ForCausalLM"],
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.2,
        "tie_word_embeddings": True,
    },
}
"""By name: a model whose attention and feed-forward read the same norm."""

_RECURRENT_TYPES = {"qwen3_next", *(config["model_type"] for config in RECURRENT.values())}


def recurrent_weights(config: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Seeded, for the tensors that the family's program names."""
    spec = read_spec(config)
    program, rng = lower(spec, weight_names(spec)), np.random.default_rng(1)
    vectors = {
        name: weight for weight in program.weights for name, _ in weight.parts if weight.kind == "vector"
    }
    made = {}
    for name, shape in program.tensors().items():
        normal = (rng.standard_normal(shape) * SPREAD).astype(np.float32)
        around = name in vectors and not vectors[name].offset
        made[name] = normal + np.float32(around)
    return made


SPREAD = 0.2
"""Standard deviation of the weights: wide, so that the best token leads by far more than rounding."""


def weights(config: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Seeded: matrices [out, in] are normal, norms 1 and biases 0."""
    rng = np.random.default_rng(0)
    if config["model_type"] in ("deepseek_v3", "gemma4_text", "llama4_text", "cohere2", "gemma2"):
        spec = read_spec(config)
        tensors = lower(spec, weight_names(spec)).tensors()
        return {name: _tensor(rng, name, shape) for name, shape in tensors.items()}
    hidden, inner, vocab = (config[name] for name in ("hidden_size", "intermediate_size", "vocab_size"))
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    matrices = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    shapes = {"model.embed_tokens": (vocab, hidden), "lm_head": (vocab, hidden), "model.norm": (hidden,)}
    biases = {}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.{name}": shape for name, shape in matrices.items()}
        shapes |= {f"{prefix}.{name}": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        if config["model_type"] == "qwen2":
            biases |= {
                f"{prefix}.self_attn.{name}_proj": size
                for name, size in (("q", hidden), ("k", kv), ("v", kv))
            }
    made: dict[str, NDArray[np.float32]] = {}
    for name, shape in shapes.items():
        normal = (rng.standard_normal(shape) * SPREAD).astype(np.float32)
        made[f"{name}.weight"] = normal if len(shape) == 2 else np.ones(shape, np.float32)
    return made | {f"{name}.bias": np.zeros(size, np.float32) for name, size in biases.items()}


def _tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    if name.endswith(("norm.weight", "scale", "layer_scalar")) or "layernorm" in name:
        return np.ones(shape, np.float32)
    return (rng.standard_normal(shape) * SPREAD).astype(np.float32)


def write(folder: Path, config: dict[str, Any]) -> None:
    """config.json and model.safetensors."""
    (folder / "config.json").write_text(json.dumps(config))
    made = recurrent_weights(config) if config["model_type"] in _RECURRENT_TYPES else weights(config)
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
