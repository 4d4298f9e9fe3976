"""Gemma: norm weights are stored less one, embeddings are scaled by the root of the hidden size."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.families.reading import (
    FULL,
    SLIDING,
    Family,
    decoder,
    offset_norm,
    read_attention,
    read_hidden,
    read_layer_count,
    read_layer_types,
    read_mlp,
    read_window,
    stacked,
    with_window,
    with_windows,
)
from headrace.models.names import HF_NAMES
from headrace.models.spec import ModelSpec

LARGE = 1e9  # of soft caps and scales

SANDWICH = replace(
    HF_NAMES,
    mixer_post_norm="model.layers.{i}.post_attention_layernorm",
    post_norm="model.layers.{i}.pre_feedforward_layernorm",
    feed_forward_post_norm="model.layers.{i}.post_feedforward_layernorm",
)


def _only_causal(config: ConfigReader) -> None:
    if config.flag("use_bidirectional_attention", False):
        raise UnsupportedModel(f"attention in both directions ({config.where}) is not supported")


def _gemma(config: ConfigReader) -> ModelSpec:
    bias = config.flag("attention_bias", False)
    mixer, longest = read_attention(config, default_head_dim=256, qkv_bias=bias, out_bias=bias)
    # "gelu" in the first configs means its tanh form, which is what the weights were trained with
    mlp = replace(read_mlp(config, activation="gelu_pytorch_tanh"), activation="gelu_tanh")
    layers = stacked([mixer] * read_layer_count(config), mlp)
    scale = read_hidden(config) ** 0.5
    return decoder(config, "gemma", layers, offset_norm(config), longest, tied=True, embedding_scale=scale)


def _gemma2(config: ConfigReader) -> ModelSpec:
    _only_causal(config)
    bias = config.flag("attention_bias", False)
    mixer, longest = read_attention(
        config, default_head_dim=256, qkv_bias=bias, out_bias=bias,
        scale=config.number("query_pre_attn_scalar", 1e-3, LARGE, 256.0) ** -0.5,
        soft_cap=config.optional_number("attn_logit_softcapping", 1e-3, LARGE),
    )  # fmt: skip
    types = read_layer_types(config, lambda index: FULL if index % 2 else SLIDING)
    windows = with_windows(config, types, read_window(config, 4096))
    mlp = read_mlp(config, activation="gelu_pytorch_tanh", field="hidden_activation")
    return decoder(
        config, "gemma2", stacked([with_window(mixer, window) for window in windows], mlp, "both"),
        offset_norm(config), longest, tied=True, embedding_scale=read_hidden(config) ** 0.5,
        final_soft_cap=config.optional_number("final_logit_softcapping", 1e-3, LARGE),
    )  # fmt: skip


def _gemma3(config: ConfigReader) -> ModelSpec:
    """Norms of q and k, and ropes of their own for layers with and without a window."""
    _only_causal(config)
    bias, norm = config.flag("attention_bias", False), offset_norm(config)
    period = config.integer("sliding_window_pattern", 1, 1024, 6)
    types = read_layer_types(config, lambda index: SLIDING if (index + 1) % period else FULL)
    windows = with_windows(config, types, read_window(config, 4096))
    thetas = {FULL: 1_000_000.0, SLIDING: 10_000.0}
    mixers, longest = {}, 1
    for kind in dict.fromkeys(types):
        mixers[kind], reach = read_attention(
            config, default_head_dim=256, layer_type=kind, theta=thetas[kind], qkv_bias=bias, out_bias=bias,
            qk_norm=norm, scale=config.number("query_pre_attn_scalar", 1e-3, LARGE, 256.0) ** -0.5,
            soft_cap=config.optional_number("attn_logit_softcapping", 1e-3, LARGE),
        )  # fmt: skip
        longest = max(longest, reach)
    layers = [with_window(mixers[kind], window) for kind, window in zip(types, windows, strict=True)]
    mlp = read_mlp(config, activation="gelu_pytorch_tanh", field="hidden_activation")
    return decoder(
        config, "gemma3", stacked(layers, mlp, "both"), norm, longest, tied=True,
        embedding_scale=read_hidden(config) ** 0.5,
        final_soft_cap=config.optional_number("final_logit_softcapping", 1e-3, LARGE),
    )  # fmt: skip


_LEFT_OUT = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
}
"""By the checkpoints with images."""

GEMMA = {
    "GemmaForCausalLM": Family("gemma", _gemma, models="Gemma", features="GELU, scaled embeddings"),
    "Gemma2ForCausalLM": Family(
        "gemma2", _gemma2, SANDWICH, models="Gemma 2", features="norms around each half, soft caps, windows"
    ),
    "Gemma3ForCausalLM": Family(
        "gemma3",
        _gemma3,
        SANDWICH,
        defaults=_LEFT_OUT,
        models="Gemma 3, text",
        features="norms of q and k, ropes by layer type",
    ),
}
