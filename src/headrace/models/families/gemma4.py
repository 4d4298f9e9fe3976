"""Gemma 4, the text part: heads by layer type, layers that share keys and values, embeddings of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.families.gemma import LARGE, SANDWICH
from headrace.models.families.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_VOCAB
from headrace.models.families.mixtures import TOGETHER, read_expert, read_experts
from headrace.models.families.reading import (
    FULL,
    SLIDING,
    Family,
    decoder,
    read_attention,
    read_hidden,
    read_layer_types,
    read_mlp,
    read_vocab,
    read_window,
    rms_norm,
    with_window,
    with_windows,
)
from headrace.models.spec import (
    AttentionSpec,
    ExpertsSpec,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    PerLayerSpec,
    RouterSpec,
)

_ROPES: Mapping[str, Any] = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
}
"""Where a config does not say."""

_OF_LAYER = ("head_dim", "num_key_value_heads")
"""What `per_layer_config` may give to a layer."""


def _gemma4(config: ConfigReader) -> ModelSpec:
    _check(config)
    types = read_layer_types(config, lambda index: FULL if (index + 1) % 6 == 0 else SLIDING)
    types[-1] = FULL  # as transformers has it, whatever the config says
    mixers, longest = _read_mixers(config, types)
    first = len(types) - config.integer("num_kv_shared_layers", 0, len(types) - 1, 0)
    mlp = read_mlp(config, activation="gelu_pytorch_tanh", field="hidden_activation")
    shared_mlp = mlp
    if config.flag("use_double_wide_mlp", False):
        shared_mlp = replace(mlp, intermediate_size=2 * mlp.intermediate_size)
    experts = _read_experts(config, mlp) if config.flag("enable_moe_block", False) else None
    layers = [LayerSpec(mixer, mlp, "both", scaled=True, beside=experts) for mixer in mixers[:first]]
    for mixer, kind in zip(mixers[first:], types[first:], strict=True):
        source = max((index for index in range(first) if types[index] == kind), default=None)
        if source is None or _stored(mixers[source]) != _stored(mixer):
            raise CheckpointError(
                f"num_kv_shared_layers in {config.where} lets {kind} layers share KV that no earlier layer has"
            )
        sharing = replace(mixer, shares=source)
        layers.append(LayerSpec(sharing, shared_mlp, "both", scaled=True, beside=experts))
    return decoder(
        config, "gemma4", layers, rms_norm(config), longest, tied=True,
        embedding_scale=read_hidden(config) ** 0.5,
        final_soft_cap=config.optional_number("final_logit_softcapping", 1e-3, LARGE),
        per_layer=_read_per_layer(config),
    )  # fmt: skip


def _unified(config: ConfigReader) -> ModelSpec:
    """Gemma 4 12B, whose text part has none of what the smaller and the sparse models add."""
    fields = {name: value for name, value in config.fields.items() if value is not None}
    fields = {"sliding_window": 1024, **fields, "hidden_size_per_layer_input": 0}
    return replace(_gemma4(ConfigReader(fields, config.where)), family="gemma4_unified")


def _check(config: ConfigReader) -> None:
    if config.fields.get("use_bidirectional_attention") in (True, "all"):  # "vision": of images only
        raise UnsupportedModel(f"attention in both directions ({config.where}) is not supported")


def _read_experts(config: ConfigReader, mlp: MLPSpec) -> ExpertsSpec:
    """Those beside the dense half of every layer."""
    router = RouterSpec(1, normalize=True, expert_scale=True, own_norm=True)
    expert = read_expert(config, "moe_intermediate_size", mlp)
    return read_experts(config, router, expert, "num_experts", chosen="top_k_experts")


def _stored(mixer: AttentionSpec) -> tuple[object, ...]:
    """What the memory of keys and values depends on."""
    return mixer.num_kv_heads, mixer.head_dim, mixer.window, mixer.rope


def _read_mixers(config: ConfigReader, types: Sequence[str]) -> tuple[list[AttentionSpec], int]:
    """The attention of each layer as if none were shared, and the longest context in tokens."""
    bias, norm = config.flag("attention_bias", False), rms_norm(config)
    one = config.flag("attention_k_eq_v", False)
    windows = with_windows(config, types, read_window(config, 512))
    mixers, longest = [], 1
    for index, (kind, window) in enumerate(zip(types, windows, strict=True)):
        mixer, reach = read_attention(
            _of_layer(config, index, kind), default_head_dim=256, layer_type=kind, qkv_bias=bias, out_bias=bias,
            scale=1.0, qk_norm=norm, value_norm=True, keys_are_values=one and kind == FULL,
        )  # fmt: skip
        mixers.append(with_window(mixer, window))
        longest = max(longest, reach)
    return mixers, longest


def _of_layer(config: ConfigReader, index: int, kind: str) -> ConfigReader:
    """The config with the head sizes of one layer: of layers with full attention, in the first configs; of any layer by
    its number, in those that transformers writes."""
    fields = {"rope_parameters": _ROPES, **{k: v for k, v in config.fields.items() if v is not None}}
    layers = config.table("per_layer_config")
    if layers is not None:
        own = layers.table(str(index)) or ConfigReader({})
        unknown = sorted(set(own.fields) - set(_OF_LAYER))
        if unknown:
            raise UnsupportedModel(f"{unknown[0]!r:.80} of a layer in {layers.where} is not supported")
        fields |= own.fields
    elif kind == FULL:
        fields["head_dim"] = config.integer("global_head_dim", 1, MAX_HEAD_DIM, 512)
        if config.flag("attention_k_eq_v", False) and config.has("num_global_key_value_heads"):
            fields["num_key_value_heads"] = config.integer("num_global_key_value_heads", 1, MAX_HEADS)
    return ConfigReader(fields, config.where)


def _read_per_layer(config: ConfigReader) -> PerLayerSpec | None:
    size = config.integer("hidden_size_per_layer_input", 0, MAX_HIDDEN, 256)
    if size == 0:
        return None
    vocab = read_vocab(config)
    rows = config.integer("vocab_size_per_layer_input", 1, MAX_VOCAB, 262_144)
    if rows < vocab:
        raise CheckpointError(
            f"vocab_size_per_layer_input {rows} in {config.where} must not be below vocab_size {vocab}"
        )
    mlp = read_mlp(config, activation="gelu_pytorch_tanh", field="hidden_activation")
    return PerLayerSpec(size, rows, mlp.activation)


_UNUSED = ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias", "k_norm.weight", "v_norm.weight")
"""Of a layer that shares keys and values: checkpoints hold these tensors all the same."""

_NAMES = replace(
    SANDWICH,
    router="model.layers.{i}.router.proj",
    expert_gate="model.layers.{i}.experts.{e}.gate_proj",
    expert_up="model.layers.{i}.experts.{e}.up_proj",
    expert_down="model.layers.{i}.experts.{e}.down_proj",
    ignored=(*SANDWICH.ignored, *(f".self_attn.{name}" for name in _UNUSED)),
)

GEMMA4 = {
    "Gemma4ForCausalLM": Family(
        "gemma4",
        _gemma4,
        _NAMES,
        by_expert=TOGETHER,
        models="Gemma 4, text",
        features="heads by layer type, shared keys and values, embeddings of each layer, experts beside a dense half",
    ),
    "Gemma4UnifiedForCausalLM": Family(
        "gemma4_unified",
        _unified,
        _NAMES,
        models="Gemma 4 12B, text",
        features="heads by layer type, keys that are values too",
    ),
}
