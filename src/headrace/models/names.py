"""Which checkpoint tensor holds which weight of the decoder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Tensor names of a checkpoint; the text {i} in a layer's names stands for the layer's number.

    A projection is named without its ending ".weight" or ".bias".
    """

    embed: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm.weight"
    head: str = "lm_head.weight"
    input_norm: str = "model.layers.{i}.input_layernorm.weight"
    post_norm: str = "model.layers.{i}.post_attention_layernorm.weight"
    query: str = "model.layers.{i}.self_attn.q_proj"
    key: str = "model.layers.{i}.self_attn.k_proj"
    value: str = "model.layers.{i}.self_attn.v_proj"
    out: str = "model.layers.{i}.self_attn.o_proj"
    query_norm: str = "model.layers.{i}.self_attn.q_norm.weight"
    key_norm: str = "model.layers.{i}.self_attn.k_norm.weight"
    gate: str = "model.layers.{i}.mlp.gate_proj"
    up: str = "model.layers.{i}.mlp.up_proj"
    down: str = "model.layers.{i}.mlp.down_proj"
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq",)
    """Endings of tensors in old checkpoints that no model uses."""


HF_NAMES = WeightNames()
"""The names that Llama, Mistral, Qwen2 and Qwen3 share."""
