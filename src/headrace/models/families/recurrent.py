"""Families whose layers are partly recurrent: Qwen3-Next and Qwen3.5 (gated delta rule), LFM2 (short convolutions)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.errors import CheckpointError
from headrace.models.config_reader import ConfigReader
from headrace.models.families.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_INTERMEDIATE, MAX_LAYERS
from headrace.models.families.mixtures import read_expert, read_experts, sparse_layers
from headrace.models.families.reading import (
    FULL,
    Arrangement,
    ExpertTensors,
    Family,
    decoder,
    offset_norm,
    read_attention,
    read_hidden,
    read_layer_count,
    read_layer_types,
    read_mlp,
    rms_norm,
)
from headrace.models.names import MTPNames, WeightNames
from headrace.models.spec import (
    ConvSpec,
    DeltaSpec,
    ExpertsSpec,
    FeedForward,
    LayerSpec,
    Mixer,
    MLPSpec,
    ModelSpec,
    NormSpec,
    RouterSpec,
)

LINEAR, CONV = "linear_attention", "conv"
"""More of HF's `layer_types`."""

MAX_WIDTH = 16
"""Positions that a convolution sees."""


def _read_delta(config: ConfigReader, *, fused: bool) -> DeltaSpec:
    """fused: the family's checkpoints have the tensors that `DeltaSpec` calls so. Files that arrange them in another
    way say so: those of llama.cpp do."""
    heads = config.integer("linear_num_value_heads", 1, MAX_HEADS, 32)
    key_heads = config.integer("linear_num_key_heads", 1, MAX_HEADS, 16)
    if heads % key_heads:
        raise CheckpointError(
            f"linear_num_value_heads {heads} in {config.where} must be a multiple of linear_num_key_heads {key_heads}"
        )
    return DeltaSpec(
        heads,
        key_heads,
        config.integer("linear_key_head_dim", 1, MAX_HEAD_DIM, 128),
        config.integer("linear_value_head_dim", 1, MAX_HEAD_DIM, 128),
        config.integer("linear_conv_kernel_dim", 2, MAX_WIDTH, 4),
        rms_norm(config),
        fused=fused and not config.flag("linear_qkv_apart", False),
        fused_numbers=fused,
        tiled=config.flag("linear_heads_tiled", False),
    )


def _qwen_layers(
    config: ConfigReader, parts: Sequence[FeedForward], *, fused: bool
) -> tuple[list[LayerSpec], NormSpec, int]:
    """The layers, their norm and the longest context. Every fourth layer attends, where the config does not say."""
    norm, bias = offset_norm(config), config.flag("attention_bias", False)
    attention, longest = read_attention(
        config,
        default_head_dim=256,
        rotated=0.25,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=norm,
        output_gate=True,
    )
    period = config.integer("full_attention_interval", 1, 1024, 4)
    types = read_layer_types(config, lambda index: LINEAR if (index + 1) % period else FULL, (FULL, LINEAR))
    delta = _read_delta(config, fused=fused)
    mixers: list[Mixer] = [attention if kind == FULL else delta for kind in types]
    layers = [LayerSpec(mixer, part) for mixer, part in zip(mixers, parts, strict=True)]
    return layers, norm, longest


def _read_mixture(config: ConfigReader, dense: MLPSpec, *, normalize: bool) -> ExpertsSpec:
    """Experts and one shared expert with a gate."""
    experts = read_experts(
        config, RouterSpec(8, normalize=normalize), read_expert(config, "moe_intermediate_size", dense),
        "num_experts", top_k=8,
    )  # fmt: skip
    shared = read_expert(config, "shared_expert_intermediate_size", dense)
    return replace(experts, shared=shared, shared_gate=True)


def _qwen3_next(config: ConfigReader) -> ModelSpec:
    dense = read_mlp(config)
    parts: list[FeedForward] = [dense] * read_layer_count(config)
    if config.has("num_experts") and config.integer("num_experts", 0, 1 << 20) > 0:
        normalize = config.flag("norm_topk_prob", True)
        parts = sparse_layers(config, dense, _read_mixture(config, dense, normalize=normalize))
    layers, norm, longest = _qwen_layers(config, parts, fused=True)
    return decoder(config, "qwen3_next", layers, norm, longest)


def _qwen3_5(config: ConfigReader) -> ModelSpec:
    parts = [read_mlp(config)] * read_layer_count(config)
    layers, norm, longest = _qwen_layers(config, parts, fused=False)
    return decoder(config, "qwen3_5", layers, norm, longest)


def _qwen3_5_moe(config: ConfigReader) -> ModelSpec:
    expert = config.integer("moe_intermediate_size", 1, MAX_INTERMEDIATE)
    dense = read_mlp(ConfigReader({**config.fields, "intermediate_size": expert}, config.where))
    experts = _read_mixture(config, dense, normalize=True)
    layers, norm, longest = _qwen_layers(config, [experts] * read_layer_count(config), fused=False)
    return decoder(config, "qwen3_5_moe", layers, norm, longest)


def _lfm2_width(config: ConfigReader) -> int:
    """Of the feed-forward half: the config's number is that of a network without a gate, unless it says otherwise."""
    wide = config.integer(
        "block_ff_dim", 1, MAX_INTERMEDIATE, config.integer("intermediate_size", 1, MAX_INTERMEDIATE, 12288)
    )
    if config.flag("block_auto_adjust_ff_dim", True):
        wide = int(config.number("block_ffn_dim_multiplier", 1e-3, 1e3, 1.0) * int(2 * wide / 3))
        step = config.integer("block_multiple_of", 1, MAX_INTERMEDIATE, 256)
        wide = -(-wide // step) * step
    return wide


def _lfm2_model(config: ConfigReader, family: str, parts: Sequence[FeedForward]) -> ModelSpec:
    norm = NormSpec(config.number("norm_eps", 1e-30, 1.0, 1e-5))
    attention, longest = read_attention(config, theta=1_000_000.0, qk_norm=norm)
    count = read_layer_count(config)
    attending = config.integers("full_attn_idxs", count, 0, count - 1, fewer=True)
    types = read_layer_types(
        config, lambda index: FULL if attending is None or index in attending else CONV, (FULL, CONV)
    )
    conv = ConvSpec(
        read_hidden(config), config.integer("conv_L_cache", 2, MAX_WIDTH, 3), config.flag("conv_bias", False)
    )
    mixers: list[Mixer] = [attention if kind == FULL else conv for kind in types]
    layers = [LayerSpec(mixer, part) for mixer, part in zip(mixers, parts, strict=True)]
    tied = config.flag("tie_embedding", True)
    return decoder(config, family, layers, norm, longest, tied=tied)


def _lfm2(config: ConfigReader) -> ModelSpec:
    return _lfm2_model(config, "lfm2", [MLPSpec(_lfm2_width(config))] * read_layer_count(config))


def _lfm2_moe(config: ConfigReader) -> ModelSpec:
    """Experts in all layers but the first few."""
    count, mlp = read_layer_count(config), read_mlp(config)
    dense = min(count, config.integer("num_dense_layers", 0, MAX_LAYERS, 2))
    router = RouterSpec(
        4,
        "sigmoid",
        normalize=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 0.0, 1e6, 1.0),
        choice_bias=config.flag("use_expert_bias", True),
    )
    parts: list[FeedForward] = [mlp] * dense
    if dense < count:
        expert = read_expert(config, "moe_intermediate_size", mlp)
        parts += [read_experts(config, router, expert, "num_experts", top_k=4)] * (count - dense)
    return _lfm2_model(config, "lfm2_moe", parts)


_QWEN_NAMES = WeightNames(
    ignored_prefixes=("mtp.",),
    mtp=MTPNames("mtp.layers.0", "mtp.fc", "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding", "mtp.norm"),
)

_LFM2_NAMES = WeightNames(
    final_norm="model.embedding_norm",
    input_norm="model.layers.{i}.operator_norm",
    post_norm="model.layers.{i}.ffn_norm",
    out="model.layers.{i}.self_attn.out_proj",
    query_norm="model.layers.{i}.self_attn.q_layernorm",
    key_norm="model.layers.{i}.self_attn.k_layernorm",
    gate="model.layers.{i}.feed_forward.w1",
    up="model.layers.{i}.feed_forward.w3",
    down="model.layers.{i}.feed_forward.w2",
    router="model.layers.{i}.feed_forward.gate",
    choice_bias="model.layers.{i}.feed_forward.expert_bias",
    expert_gate="model.layers.{i}.feed_forward.experts.{e}.w1",
    expert_up="model.layers.{i}.feed_forward.experts.{e}.w3",
    expert_down="model.layers.{i}.feed_forward.experts.{e}.w2",
)

_LFM2_TOGETHER = {
    ".experts.gate_up_proj": ExpertTensors((".experts.{e}.w1.weight", ".experts.{e}.w3.weight"), apart=True),
    ".experts.down_proj": ExpertTensors((".experts.{e}.w2.weight",)),
}

_QWEN_ARRANGED: dict[str, Arrangement] = {".linear_attn.conv1d.weight": "flattened"}

RECURRENT = {
    "Qwen3NextForCausalLM": Family(
        "qwen3_next",
        _qwen3_next,
        _QWEN_NAMES,
        _QWEN_ARRANGED,
        models="Qwen3-Next",
        features="gated delta rule, output gates, experts with a shared expert",
    ),
    "Qwen3_5ForCausalLM": Family(
        "qwen3_5",
        _qwen3_5,
        _QWEN_NAMES,
        _QWEN_ARRANGED,
        models="Qwen3.5, text",
        features="gated delta rule, output gates",
    ),
    "Qwen3_5MoeForCausalLM": Family(
        "qwen3_5_moe",
        _qwen3_5_moe,
        _QWEN_NAMES,
        _QWEN_ARRANGED,
        models="Qwen3.5 with experts, text",
        features="as Qwen3-Next",
    ),
    "Lfm2ForCausalLM": Family(
        "lfm2",
        _lfm2,
        _LFM2_NAMES,
        {".conv.conv.weight": "flattened"},
        models="LFM2",
        features="short convolutions",
    ),
    "Lfm2MoeForCausalLM": Family(
        "lfm2_moe",
        _lfm2_moe,
        _LFM2_NAMES,
        {".conv.conv.weight": "flattened"},
        _LFM2_TOGETHER,
        models="LFM2 with experts",
        features="short convolutions, experts with a corrected choice",
    ),
}
