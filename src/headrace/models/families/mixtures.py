"""Families with mixtures of experts in place of the feed-forward half, in all layers or in some."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import CheckpointError
from headrace.models.config_reader import ConfigReader
from headrace.models.families.limits import MAX_CHOICES, MAX_EXPERTS, MAX_INTERMEDIATE, MAX_LAYERS
from headrace.models.families.reading import (
    FULL,
    SLIDING,
    ExpertTensors,
    Family,
    decoder,
    read_attention,
    read_layer_count,
    read_layer_types,
    read_mlp,
    read_window,
    rms_norm,
    with_window,
    with_windows,
)
from headrace.models.names import WeightNames
from headrace.models.spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForward,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    RouterSpec,
)


def read_experts(
    config: ConfigReader, router: RouterSpec, expert: MLPSpec, *counts: str, top_k: int | None = None,
    chosen: str = "num_experts_per_tok",
) -> ExpertsSpec:  # fmt: skip
    """Experts whose number is in the first of the fields `counts` that there is. chosen: the field that has how many a
    token goes to; top_k: where the config does not say.

    Raises CheckpointError where the numbers contradict each other.
    """
    name = next((one for one in counts if config.has(one)), counts[0])
    count = config.integer(name, 1, MAX_EXPERTS)
    each = config.integer(chosen, 1, MAX_CHOICES, top_k)
    if each > count:
        raise CheckpointError(f"{chosen} {each} in {config.where} is more than the {count} of {name}")
    return ExpertsSpec(count, replace(router, top_k=each), expert)


def read_expert(config: ConfigReader, field: str, activation: MLPSpec) -> MLPSpec:
    """An MLP like `activation`'s whose intermediate size is in that field."""
    return replace(activation, intermediate_size=config.integer(field, 1, MAX_INTERMEDIATE))


def sparse_layers(config: ConfigReader, dense: MLPSpec, experts: ExpertsSpec) -> list[FeedForward]:
    """Qwen: every `decoder_sparse_step`-th layer has experts, except `mlp_only_layers`."""
    count = read_layer_count(config)
    step = config.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    only = config.integers("mlp_only_layers", count, 0, count - 1, fewer=True) or []
    return [dense if index in only or (index + 1) % step else experts for index in range(count)]


def _layers(mixers: list[AttentionSpec], parts: list[FeedForward]) -> list[LayerSpec]:
    return [LayerSpec(mixer, part) for mixer, part in zip(mixers, parts, strict=True)]


def _mixtral(config: ConfigReader) -> ModelSpec:
    mixer, longest = read_attention(config)
    mixers = [with_window(mixer, read_window(config))] * read_layer_count(config)
    experts = read_experts(
        config, RouterSpec(2, normalize=True), read_mlp(config), "num_local_experts", top_k=2
    )
    layers = _layers(mixers, [experts] * len(mixers))
    return decoder(config, "mixtral", layers, rms_norm(config), longest)


def _qwen2_moe(config: ConfigReader) -> ModelSpec:
    """One window for every second layer, where it is in use; a shared expert with a gate."""
    mixer, longest = read_attention(config, qkv_bias=config.flag("qkv_bias", True))
    window = read_window(config) if config.flag("use_sliding_window", False) else None
    last = config.integer("max_window_layers", 0, 1 << 20, 28)
    types = read_layer_types(
        config, lambda index: SLIDING if window and index % 2 == 0 and index < last else FULL
    )
    mixers = [with_window(mixer, width) for width in with_windows(config, types, window)]
    dense = read_mlp(config)
    router = RouterSpec(4, normalize=config.flag("norm_topk_prob", False))
    expert = read_expert(config, "moe_intermediate_size", dense)
    experts = replace(
        read_experts(config, router, expert, "num_experts", top_k=4),
        shared=read_expert(config, "shared_expert_intermediate_size", dense),
        shared_gate=True,
    )
    layers = _layers(mixers, sparse_layers(config, dense, experts))
    return decoder(config, "qwen2_moe", layers, rms_norm(config), longest)


def _qwen3_moe(config: ConfigReader) -> ModelSpec:
    """One window for all layers, where it is in use."""
    bias, norm = config.flag("attention_bias", False), rms_norm(config)
    mixer, longest = read_attention(config, qkv_bias=bias, out_bias=bias, qk_norm=norm)
    window = read_window(config) if config.flag("use_sliding_window", False) else None
    dense = read_mlp(config)
    router = RouterSpec(8, normalize=config.flag("norm_topk_prob", False))
    expert = read_expert(config, "moe_intermediate_size", dense)
    experts = read_experts(config, router, expert, "num_experts", "num_local_experts", top_k=8)
    parts = sparse_layers(config, dense, experts)
    return decoder(
        config, "qwen3_moe", _layers([with_window(mixer, window)] * len(parts), parts), norm, longest
    )


MIXTRAL_NAMES = WeightNames(
    router="model.layers.{i}.block_sparse_moe.gate",
    expert_gate="model.layers.{i}.block_sparse_moe.experts.{e}.w1",
    expert_up="model.layers.{i}.block_sparse_moe.experts.{e}.w3",
    expert_down="model.layers.{i}.block_sparse_moe.experts.{e}.w2",
)

_MIXTRAL_EXPERT = ".block_sparse_moe.experts.{e}"
_MIXTRAL_TOGETHER = {
    ".mlp.experts.gate_up_proj": ExpertTensors(
        (f"{_MIXTRAL_EXPERT}.w1.weight", f"{_MIXTRAL_EXPERT}.w3.weight"), apart=True
    ),
    ".mlp.experts.down_proj": ExpertTensors((f"{_MIXTRAL_EXPERT}.w2.weight",)),
}

TOGETHER = {
    ".experts.gate_up_proj": ExpertTensors(
        (".experts.{e}.gate_proj.weight", ".experts.{e}.up_proj.weight"), apart=True
    ),
    ".experts.down_proj": ExpertTensors((".experts.{e}.down_proj.weight",)),
}
"""Tensors of all experts, as transformers 5 holds them, and some checkpoints too."""

MIXTURES = {
    "MixtralForCausalLM": Family(
        "mixtral",
        _mixtral,
        MIXTRAL_NAMES,
        by_expert=_MIXTRAL_TOGETHER,
        renamed={".mlp.gate.weight": ".block_sparse_moe.gate.weight"},
        models="Mixtral",
        features="8 experts, 2 a token",
    ),
    "Qwen2MoeForCausalLM": Family(
        "qwen2_moe",
        _qwen2_moe,
        models="Qwen1.5-MoE, Qwen2-MoE",
        features="experts, a gated shared expert",
        by_expert=TOGETHER,
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe", _qwen3_moe, models="Qwen3-MoE", features="128 experts, 8 a token", by_expert=TOGETHER
    ),
}
