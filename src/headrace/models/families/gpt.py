"""Families with LayerNorm and a feed-forward without gate: GPT-2, GPT-NeoX, StarCoder 2."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.families.limits import MAX_HEADS, MAX_INTERMEDIATE, MAX_LAYERS
from headrace.models.families.reading import (
    Family,
    decoder,
    layer_norm,
    read_activation,
    read_attention,
    read_hidden,
    read_layer_count,
    read_mlp,
    read_vocab,
    read_window,
    stacked,
    with_window,
)
from headrace.models.names import WeightNames
from headrace.models.rope_config import MAX_POSITION
from headrace.models.spec import AttentionSpec, MLPSpec, ModelSpec, NormPlacement

_GPT2_NAMES = WeightNames(
    embed="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    input_norm="transformer.h.{i}.ln_1",
    post_norm="transformer.h.{i}.ln_2",
    query="",
    key="",
    value="",
    qkv="transformer.h.{i}.attn.c_attn",
    out="transformer.h.{i}.attn.c_proj",
    gate="",
    up="transformer.h.{i}.mlp.c_fc",
    down="transformer.h.{i}.mlp.c_proj",
    ignored=(".attn.bias", ".attn.masked_bias"),
)

_NEOX_NAMES = WeightNames(
    embed="gpt_neox.embed_in",
    final_norm="gpt_neox.final_layer_norm",
    head="embed_out",
    input_norm="gpt_neox.layers.{i}.input_layernorm",
    post_norm="gpt_neox.layers.{i}.post_attention_layernorm",
    query="",
    key="",
    value="",
    qkv="gpt_neox.layers.{i}.attention.query_key_value",
    out="gpt_neox.layers.{i}.attention.dense",
    gate="",
    up="gpt_neox.layers.{i}.mlp.dense_h_to_4h",
    down="gpt_neox.layers.{i}.mlp.dense_4h_to_h",
    ignored=(".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"),
)

_STARCODER_NAMES = WeightNames(
    gate="",
    up="model.layers.{i}.mlp.c_fc",
    down="model.layers.{i}.mlp.c_proj",
)


def _gpt2(config: ConfigReader) -> ModelSpec:
    """Learned positions instead of rope. The config has names of its own for most sizes."""
    for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"):
        if config.flag(name, False):
            raise UnsupportedModel(f"{name} in {config.where} is not supported")
    hidden = read_hidden(config, "n_embd")
    heads = config.integer("n_head", 1, MAX_HEADS)
    if hidden % heads:
        raise CheckpointError(f"n_embd {hidden} must be a multiple of n_head {heads}")
    positions = config.integer("n_positions", 1, MAX_POSITION)
    head_dim = hidden // heads
    scale = head_dim**-0.5 if config.flag("scale_attn_weights", True) else 1.0
    mixer = AttentionSpec(heads, heads, head_dim, scale, rope=None, qkv_bias=True, out_bias=True)
    wide = config.integer("n_inner", 1, MAX_INTERMEDIATE, 4 * hidden)
    mlp = MLPSpec(wide, read_activation(config, "activation_function", "gelu_new"), bias=True, gated=False)
    return ModelSpec(
        family="gpt2",
        hidden_size=hidden,
        vocab_size=read_vocab(config),
        max_position=positions,
        layers=tuple(stacked([mixer] * config.integer("n_layer", 1, MAX_LAYERS), mlp)),
        norm=layer_norm(config, "layer_norm_epsilon", bias=True),
        tie_embeddings=config.flag("tie_word_embeddings", True),
        checkpoint_dtype="float32",
        learned_positions=positions,
    )


def _neox(config: ConfigReader) -> ModelSpec:
    """GPT-NeoX and Pythia: both halves read the stream, each through a norm of its own."""
    bias = config.flag("attention_bias", True)
    rotated = config.number("rotary_pct", 0.0, 1.0, 0.25)
    theta = config.number("rotary_emb_base", 1.5, 1e15, 10_000.0)
    mixer, longest = read_attention(config, rotated=rotated, theta=theta, qkv_bias=bias, out_bias=bias)
    mixer = replace(mixer, num_kv_heads=mixer.num_heads)
    mlp = read_mlp(config, bias=True, activation="gelu", gated=False)
    placement: NormPlacement = "parallel" if config.flag("use_parallel_residual", True) else "pre"
    layers = stacked([mixer] * read_layer_count(config), mlp, placement)
    return decoder(config, "gpt_neox", layers, layer_norm(config, "layer_norm_eps", bias=True), longest)


def _starcoder2(config: ConfigReader) -> ModelSpec:
    bias = config.flag("use_bias", True)
    mixer, longest = read_attention(config, qkv_bias=bias, out_bias=bias)
    mixers = [with_window(mixer, read_window(config))] * read_layer_count(config)
    mlp = read_mlp(config, bias=bias, activation="gelu_pytorch_tanh", gated=False)
    norm = layer_norm(config, "norm_epsilon", bias=True)
    return decoder(config, "starcoder2", stacked(mixers, mlp), norm, longest, tied=True)


_CONV1D = (".attn.c_attn", ".attn.c_proj", ".mlp.c_fc", ".mlp.c_proj")

GPT = {
    "GPT2LMHeadModel": Family(
        "gpt2",
        _gpt2,
        _GPT2_NAMES,
        {f"{name}.weight": "transposed" for name in _CONV1D},
        models="GPT-2",
        features="learned positions, LayerNorm, no gate",
    ),
    "GPTNeoXForCausalLM": Family(
        "gpt_neox",
        _neox,
        _NEOX_NAMES,
        {f".query_key_value.{end}": "qkv-by-head" for end in ("weight", "bias")},
        models="GPT-NeoX, Pythia",
        features="parallel halves, LayerNorm, no gate",
    ),
    "Starcoder2ForCausalLM": Family(
        "starcoder2",
        _starcoder2,
        _STARCODER_NAMES,
        models="StarCoder 2",
        features="LayerNorm, no gate, sliding window",
    ),
}
