"""Old families with linear biases in place of positions: Bloom and MPT."""

from __future__ import annotations

from headrace.errors import CheckpointError
from headrace.models.config_reader import ConfigReader
from headrace.models.families.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS
from headrace.models.families.reading import Family, layer_norm, read_hidden, read_vocab, stacked
from headrace.models.names import WeightNames
from headrace.models.rope_config import MAX_POSITION
from headrace.models.spec import AttentionSpec, MLPSpec, ModelSpec, NormSpec

MAX_BIAS = 64.0
"""The largest exponent of a slope."""

_BLOOM_NAMES = WeightNames(
    embed="transformer.word_embeddings",
    embed_norm="transformer.word_embeddings_layernorm",
    final_norm="transformer.ln_f",
    input_norm="transformer.h.{i}.input_layernorm",
    post_norm="transformer.h.{i}.post_attention_layernorm",
    query="",
    key="",
    value="",
    qkv="transformer.h.{i}.self_attention.query_key_value",
    out="transformer.h.{i}.self_attention.dense",
    gate="",
    up="transformer.h.{i}.mlp.dense_h_to_4h",
    down="transformer.h.{i}.mlp.dense_4h_to_h",
)

_MPT_NAMES = WeightNames(
    embed="transformer.wte",
    final_norm="transformer.norm_f",
    input_norm="transformer.blocks.{i}.norm_1",
    post_norm="transformer.blocks.{i}.norm_2",
    query="",
    key="",
    value="",
    qkv="transformer.blocks.{i}.attn.Wqkv",
    out="transformer.blocks.{i}.attn.out_proj",
    gate="",
    up="transformer.blocks.{i}.ffn.up_proj",
    down="transformer.blocks.{i}.ffn.down_proj",
)


def _named(config: ConfigReader, *names: str) -> str:
    """The first of these fields that the config has: it was renamed over time."""
    return next((name for name in names if config.has(name)), names[0])


def _mixer(hidden: int, heads: int, alibi: float, *, bias: bool, scale: float | None = None) -> AttentionSpec:
    head_dim, rest = divmod(hidden, heads)
    if rest or head_dim > MAX_HEAD_DIM:
        raise CheckpointError(
            f"hidden size {hidden} must be a multiple of the {heads} heads, of at most {MAX_HEAD_DIM} features each"
        )
    return AttentionSpec(
        heads, heads, head_dim, scale or head_dim**-0.5, rope=None, qkv_bias=bias, out_bias=bias, alibi=alibi
    )


def _decoder(
    config: ConfigReader,
    family: str,
    layers: int,
    mixer: AttentionSpec,
    mlp: MLPSpec,
    norm: NormSpec,
    longest: int,
) -> ModelSpec:
    """Bloom has a norm of the embeddings, MPT has not."""
    return ModelSpec(
        family=family,
        hidden_size=mixer.num_heads * mixer.head_dim,
        vocab_size=read_vocab(config),
        max_position=longest,
        layers=tuple(stacked([mixer] * layers, mlp)),
        norm=norm,
        tie_embeddings=config.flag("tie_word_embeddings", True),
        checkpoint_dtype="float32",
        embedding_norm=family == "bloom",
    )


def _bloom(config: ConfigReader) -> ModelSpec:
    config.only("apply_residual_connection_post_layernorm", (False,), False)
    hidden = read_hidden(config, _named(config, "hidden_size", "n_embed"))
    heads = config.integer(_named(config, "n_head", "num_attention_heads"), 1, MAX_HEADS)
    layers = config.integer(_named(config, "n_layer", "num_hidden_layers"), 1, MAX_LAYERS)
    mlp = MLPSpec(4 * hidden, "gelu_tanh", bias=True, gated=False)
    norm = layer_norm(config, "layer_norm_epsilon", bias=True)
    longest = config.integer("seq_length", 1, MAX_POSITION, 2048)
    return _decoder(config, "bloom", layers, _mixer(hidden, heads, 8.0, bias=True), mlp, norm, longest)


def _mpt(config: ConfigReader) -> ModelSpec:
    """Without biases."""
    config.only("no_bias", (True,), True)
    config.only("logit_scale", (None,), None)
    hidden = read_hidden(config, "d_model")
    heads = config.integer("n_heads", 1, MAX_HEADS)
    attention = config.table("attn_config") or ConfigReader({}, config.where)
    attention.only("alibi", (True,), True)
    attention.only("qk_ln", (False,), False)
    attention.only("clip_qkv", (None, 0, 0.0), None)
    bias = attention.number("alibi_bias_max", 1e-3, MAX_BIAS, 8.0)
    scale = attention.optional_number("softmax_scale", 1e-6, 1e6)
    mlp = MLPSpec(config.integer("expansion_ratio", 1, 64, 4) * hidden, "gelu", gated=False)
    norm = layer_norm(config, "layer_norm_epsilon", bias=False)
    layers = config.integer("n_layers", 1, MAX_LAYERS)
    mixer = _mixer(hidden, heads, bias, bias=False, scale=scale)
    return _decoder(
        config, "mpt", layers, mixer, mlp, norm, config.integer("max_seq_len", 1, MAX_POSITION, 2048)
    )


ALIBI = {
    "BloomForCausalLM": Family(
        "bloom",
        _bloom,
        _BLOOM_NAMES,
        {f".query_key_value.{end}": "qkv-by-head" for end in ("weight", "bias")},
        models="Bloom",
        features="linear biases (ALiBi), LayerNorm, no gate",
    ),
    "MptForCausalLM": Family(
        "mpt", _mpt, _MPT_NAMES, models="MPT", features="linear biases (ALiBi), LayerNorm, no gate"
    ),
}
