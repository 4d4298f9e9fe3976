"""Checkpoints of small random models with a layer that predicts further tokens, by the published names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests import tiny_checkpoint

Tensors = dict[str, NDArray[np.float32]]

CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek": tiny_checkpoint.CONFIGS["deepseek"] | {"num_nextn_predict_layers": 1},
    "delta": tiny_checkpoint.RECURRENT["delta"]
    | {"mtp_num_hidden_layers": 1, "linear_conv_kernel_dim": 4, "full_attention_interval": 2},
}
GLM: dict[str, Any] = {
    "model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "vocab_size": 2048, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.5, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32",
    "first_k_dense_replace": 1, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 1.0, "use_qk_norm": True, "num_nextn_predict_layers": 1,
}  # fmt: skip
CONFIGS["glm"] = GLM

NAMES = {
    "deepseek": ("model.layers.3.", "eh_proj", "hnorm", "enorm", "shared_head.norm"),
    "glm": ("model.layers.2.", "eh_proj", "hnorm", "enorm", "shared_head.norm"),
    "delta": ("mtp.", "fc", "pre_fc_norm_hidden", "pre_fc_norm_embedding", "norm"),
}
"""What the names begin with; the matrix, the norms of the state and of the embedding, and the last norm."""

LIKE = {"deepseek": "model.layers.2.", "glm": "model.layers.1.", "delta": "model.layers.1."}
"""The layer of the model that has the shape of the one that predicts further tokens."""


def own_layer(name: str) -> str:
    """What the names of the decoder layer begin with."""
    return "mtp.layers.0." if name == "delta" else NAMES[name][0]


def tensors(name: str) -> Tensors:
    """Of the whole checkpoint, seeded."""
    config = CONFIGS[name]
    made = (
        tiny_checkpoint.recurrent_weights(config)
        if name in ("delta", "glm")
        else tiny_checkpoint.weights(config)
    )
    rng, (prefix, join, state, embedding, last) = np.random.default_rng(7), NAMES[name]
    size, spread = config["hidden_size"], tiny_checkpoint.SPREAD
    more: Tensors = {}
    for tensor, values in made.items():
        if tensor.endswith("conv1d.weight"):
            made[tensor] = values.reshape(-1, 1, config["linear_conv_kernel_dim"])  # as it is published
        if tensor.startswith(LIKE[name]):
            noise = (rng.standard_normal(values.shape) * spread).astype(np.float32)
            own = own_layer(name) + tensor.removeprefix(LIKE[name])
            more[own] = noise if values.ndim > 1 else values + noise
    more[f"{prefix}{join}.weight"] = (rng.standard_normal((size, 2 * size)) * spread).astype(np.float32)
    for norm in (state, embedding, last):
        more[f"{prefix}{norm}.weight"] = (0.5 + 0.2 * rng.standard_normal(size)).astype(np.float32)
    if name != "delta":  # copies that are in the published files
        more[f"{prefix}embed_tokens.weight"] = made["model.embed_tokens.weight"].copy()
        more[f"{prefix}shared_head.head.weight"] = made["lm_head.weight"].copy()
    return made | more


def write(folder: Path, name: str, changed: Tensors | None = None, without: str | None = None) -> Path:
    """config.json and model.safetensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    made = {one: values for one, values in tensors(name).items() if one != without}
    save_file(made | (changed or {}), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_layer(folder: Path, name: str) -> Path:
    """The one layer as a model of its own, whose last norm is the layer's, for transformers."""
    config = CONFIGS[name] | {"num_hidden_layers": 1}
    config |= {"layer_types": ["full_attention"]} if name == "delta" else {"first_k_dense_replace": 0}
    if name == "deepseek":
        config["num_key_value_heads"] = config["num_attention_heads"]
    made, (prefix, *_, last) = tensors(name), NAMES[name]
    own = {
        "model.layers.0." + one.removeprefix(own_layer(name)): values
        for one, values in made.items()
        if one.startswith(own_layer(name))
        and f"model.layers.0.{one.removeprefix(own_layer(name))}" in _like(name)
    }
    own |= {one: made[one] for one in ("model.embed_tokens.weight", "lm_head.weight")}
    own["model.norm.weight"] = made[f"{prefix}{last}.weight"]
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(own, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _like(name: str) -> set[str]:
    """The names of a decoder layer's tensors, as those of layer 0."""
    return {
        "model.layers.0." + one.removeprefix(LIKE[name])
        for one in tensors(name)
        if one.startswith(LIKE[name])
    }
