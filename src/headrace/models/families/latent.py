"""Families with latent attention: DeepSeek V2, V3 and R1, and GLM-4.7-Flash. Their first layers are dense, the others
are mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.errors import CheckpointError
from headrace.models.config_reader import ConfigReader
from headrace.models.families.limits import MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS
from headrace.models.families.mixtures import read_expert, read_experts
from headrace.models.families.reading import (
    Family,
    decoder,
    read_layer_count,
    read_mlp,
    rms_norm,
)
from headrace.models.names import MTPNames, WeightNames
from headrace.models.rope import yarn_scale
from headrace.models.rope_config import MAX_POSITION, read_rope
from headrace.models.spec import (
    ExpertsSpec,
    FeedForward,
    LatentSpec,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    NormSpec,
    RouterSpec,
)

MAX_RANK = 65_536
MAX_SHARED = 64

_SPARSE, _DENSE = "sparse", "dense"


def read_latent(config: ConfigReader) -> tuple[LatentSpec, int]:
    """Latent attention, and the longest context in tokens. Its norms have an epsilon of their own, which no config
    names."""
    num_heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    key_dim = config.integer("qk_nope_head_dim", 1, MAX_HEAD_DIM)
    rope_dim = config.integer("qk_rope_head_dim", 2, MAX_HEAD_DIM)
    latent = config.integer("kv_lora_rank", 1, MAX_HEAD_DIM)
    if latent + rope_dim > MAX_HEAD_DIM:
        raise CheckpointError(
            f"kv_lora_rank {latent} and qk_rope_head_dim {rope_dim} in {config.where} must be at most "
            f"{MAX_HEAD_DIM} together"
        )
    rope, longest = read_rope(config, rope_dim, config.integer("max_position_embeddings", 1, MAX_POSITION))
    mixer = LatentSpec(
        num_heads=num_heads,
        latent=latent,
        key_dim=key_dim,
        rope_dim=rope_dim,
        value_dim=config.integer("v_head_dim", 1, MAX_HEAD_DIM),
        query_rank=config.integer("q_lora_rank", 1, MAX_RANK) if config.has("q_lora_rank") else None,
        scale=(key_dim + rope_dim) ** -0.5 * yarn_scale(rope),
        rope=replace(rope, interleaved=config.flag("rope_interleave", True)),
        norm=NormSpec(1e-6),
        bias=config.flag("attention_bias", False),
    )
    return mixer, longest


def _groups(config: ConfigReader) -> dict[str, Any]:
    """Fields of a router: groups of experts, of which a token considers some."""
    groups = config.integer("n_group", 1, MAX_EXPERTS, 1)
    best = config.integer("topk_group", 1, MAX_EXPERTS, groups)
    if best > groups:
        raise CheckpointError(f"topk_group {best} in {config.where} is more than the {groups} of n_group")
    return {"groups": groups, "top_groups": best}


def _experts(config: ConfigReader, dense: MLPSpec, router: RouterSpec, top_k: int | None) -> ExpertsSpec:
    """With the shared experts, which are one that is so many times as wide."""
    expert = read_expert(config, "moe_intermediate_size", dense)
    spec = read_experts(
        config, router, expert, "n_routed_experts", "num_experts", "num_local_experts", top_k=top_k
    )
    chosen = spec.router
    if (
        spec.num_experts % chosen.groups
        or spec.num_experts // chosen.groups * chosen.top_groups < chosen.top_k
    ):
        raise CheckpointError(
            f"{spec.num_experts} experts in {config.where} cannot be {chosen.groups} equal groups (n_group) of which "
            f"{chosen.top_groups} (topk_group) hold the {chosen.top_k} of num_experts_per_tok"
        )
    if (
        chosen.group_score == "top2"
        and chosen.top_groups < chosen.groups
        and spec.num_experts // chosen.groups < 2
    ):
        raise CheckpointError(f"groups of one expert in {config.where} have no two best scores")
    shared = config.integer("n_shared_experts", 0, MAX_SHARED, 0)
    wide = expert.intermediate_size * shared
    return replace(spec, shared=replace(expert, intermediate_size=wide) if shared else None)


def first_dense(config: ConfigReader, default: int) -> list[str]:
    """The kind of each layer: `default` of them without experts, where the config does not say."""
    count = read_layer_count(config)
    first = config.integer("first_k_dense_replace", 0, MAX_LAYERS, default)
    step = config.integer("moe_layer_freq", 1, MAX_LAYERS, 1)
    return [_SPARSE if index >= first and index % step == 0 else _DENSE for index in range(count)]


def experts_of_layers(
    config: ConfigReader, dense: MLPSpec, kinds: list[str], router: RouterSpec, top_k: int | None
) -> list[FeedForward]:
    """The feed-forward half of each layer, by its kind."""
    parts: dict[str, FeedForward] = {_DENSE: dense}
    if _SPARSE in kinds:
        parts[_SPARSE] = _experts(config, dense, router, top_k)
    return [parts[kind] for kind in kinds]


def _model(
    config: ConfigReader, family: str, kinds: list[str], router: RouterSpec, top_k: int | None
) -> ModelSpec:
    mixer, longest = read_latent(config)
    config.only("mlp_bias", (False,), False)
    parts = experts_of_layers(config, read_mlp(config), kinds, router, top_k)
    layers = [LayerSpec(mixer, part) for part in parts]
    return decoder(config, family, layers, rms_norm(config), longest)


def _deepseek_v2(config: ConfigReader) -> ModelSpec:
    config.only("scoring_func", ("softmax",), "softmax")
    config.only("topk_method", ("greedy", "group_limited_greedy"), "greedy")
    grouped = config.text("topk_method", "greedy") == "group_limited_greedy"
    router = RouterSpec(
        1,
        normalize=config.flag("norm_topk_prob", False),
        scale=config.number("routed_scaling_factor", 0.0, 1e6, 1.0),
        **(_groups(config) if grouped else {}),
    )
    return _model(config, "deepseek_v2", first_dense(config, 0), router, None)


def sigmoid_router(config: ConfigReader, scale: float) -> RouterSpec:
    """DeepSeek V3's. `scale`: of the weights, where the config does not say."""
    config.only("scoring_func", ("sigmoid",), "sigmoid")
    config.only("topk_method", ("noaux_tc",), "noaux_tc")
    return RouterSpec(
        1,
        scores="sigmoid",
        normalize=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 0.0, 1e6, scale),
        choice_bias=True,
        group_score="top2",
        **_groups(config),
    )


def _deepseek_v3(config: ConfigReader) -> ModelSpec:
    return _model(config, "deepseek_v3", first_dense(config, 3), sigmoid_router(config, 2.5), 8)


def _glm4_moe_lite(config: ConfigReader) -> ModelSpec:
    """DeepSeek V3's layers; `mlp_layer_types` says which of them have experts."""
    count = read_layer_count(config)
    kinds = config.texts("mlp_layer_types", count) or first_dense(config, 1)
    if {*kinds} - {_SPARSE, _DENSE}:
        raise CheckpointError(f"mlp_layer_types in {config.where} must be {_SPARSE!r} or {_DENSE!r}")
    return _model(config, "glm4_moe_lite", kinds, sigmoid_router(config, 1.8), 4)


_MTP = MTPNames(
    layer="model.layers.{n}",
    join="model.layers.{n}.eh_proj",
    state_norm="model.layers.{n}.hnorm",
    embedding_norm="model.layers.{n}.enorm",
    final_norm="model.layers.{n}.shared_head.norm",
)


def shared_names(*, mtp: bool = True) -> WeightNames:
    """Names of shared experts. mtp: there may be a layer after the last one that predicts further tokens."""
    return WeightNames(
        shared_gate="model.layers.{i}.mlp.shared_experts.gate_proj",
        shared_up="model.layers.{i}.mlp.shared_experts.up_proj",
        shared_down="model.layers.{i}.mlp.shared_experts.down_proj",
        ignored_prefixes=("model.layers.{n}.",) if mtp else (),
        mtp=_MTP if mtp else None,
    )


LATENT = {
    "DeepseekV2ForCausalLM": Family(
        "deepseek_v2",
        _deepseek_v2,
        shared_names(mtp=False),
        models="DeepSeek V2, V2-Lite",
        features="latent attention, experts in groups, shared experts",
    ),
    "DeepseekV3ForCausalLM": Family(
        "deepseek_v3",
        _deepseek_v3,
        shared_names(),
        models="DeepSeek V3, R1",
        features="latent attention, experts in groups, shared experts",
    ),
    "Glm4MoeLiteForCausalLM": Family(
        "glm4_moe_lite",
        _glm4_moe_lite,
        shared_names(),
        models="GLM-4.7-Flash",
        features="latent attention, experts, a shared expert",
    ),
}
