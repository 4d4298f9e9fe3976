"""Llama 4, text: attention within chunks, layers without positions, experts whose inputs are scaled."""

from __future__ import annotations

from dataclasses import replace

from headrace.core.types import Retention
from headrace.errors import CheckpointError
from headrace.models.config_reader import ConfigReader
from headrace.models.families.limits import MAX_INTERMEDIATE, MAX_LAYERS
from headrace.models.families.mixtures import read_experts
from headrace.models.families.reading import (
    FULL,
    ExpertTensors,
    Family,
    decoder,
    interleaved,
    read_attention,
    read_layer_count,
    read_layer_types,
    read_mlp,
    rms_norm,
)
from headrace.models.names import WeightNames
from headrace.models.rope_config import MAX_POSITION
from headrace.models.spec import AttentionSpec, LayerSpec, ModelSpec, RouterSpec, Temperature

CHUNKED = "chunked_attention"
"""One more of HF's `layer_types`."""


def _mixers(config: ConfigReader) -> tuple[list[AttentionSpec], int]:
    """Of every layer, and the longest context. Every fourth layer has no positions and attends to everything, where the
    config does not say."""
    count = read_layer_count(config)
    bias = config.flag("attention_bias", False)
    plain, longest = read_attention(config, theta=500_000.0, qkv_bias=bias, out_bias=bias)
    norm = replace(rms_norm(config), weighted=False) if config.flag("use_qk_norm", True) else None
    rotated = replace(plain, rope=interleaved(plain.rope), qk_norm=norm)
    still = replace(plain, rope=None)
    if config.flag("attn_temperature_tuning", True):
        length = config.integer("floor_scale", 1, MAX_POSITION, 8192)
        still = replace(still, temperature=Temperature(config.number("attn_scale", 0.0, 1e3, 0.1), length, 1))
    period = config.integer("no_rope_layer_interval", 1, MAX_LAYERS, 4)
    turning = config.integers("no_rope_layers", count, 0, 1, fewer=True)  # 1: those with positions
    turns = (
        [bool((index + 1) % period) for index in range(count)]
        if not turning
        else [one == 1 for one in turning]
    )
    if len(turns) != count:
        raise CheckpointError(f"no_rope_layers in {config.where} must be a list of {count} whole numbers")
    chunk = config.integer("attention_chunk_size", 1, MAX_POSITION, 8192)
    types = read_layer_types(config, lambda index: CHUNKED if turns[index] else FULL, (FULL, CHUNKED))
    mixers = []
    for kind, turned in zip(types, turns, strict=True):
        mixer = rotated if turned else still
        if kind == CHUNKED:
            mixer = replace(mixer, retention=Retention.WINDOW, window=chunk, chunked=True)
        mixers.append(mixer)
    return mixers, longest


def _llama4(config: ConfigReader) -> ModelSpec:
    mixers, longest = _mixers(config)
    expert = read_mlp(config)
    dense = replace(
        expert, intermediate_size=config.integer("intermediate_size_mlp", 1, MAX_INTERMEDIATE, 16_384)
    )
    count = len(mixers)
    step = config.integer("interleave_moe_layer_step", 1, MAX_LAYERS, 1)
    sparse = config.integers("moe_layers", count + 1, 0, count - 1, fewer=True)
    if sparse is None:
        sparse = [*range(step - 1, count, step)]
    layers = [LayerSpec(mixer, dense) for mixer in mixers]
    if sparse:
        router = RouterSpec(1, "sigmoid")
        experts = read_experts(config, router, expert, "num_local_experts", top_k=1)
        experts = replace(experts, shared=expert, scaled_inputs=True)
        layers = [
            replace(layer, feed_forward=experts) if index in sparse else layer
            for index, layer in enumerate(layers)
        ]
    return decoder(config, "llama4", layers, rms_norm(config), longest)


_HALF = "model.layers.{i}.feed_forward"

_NAMES = WeightNames(
    gate=f"{_HALF}.gate_proj",
    up=f"{_HALF}.up_proj",
    down=f"{_HALF}.down_proj",
    router=f"{_HALF}.router",
    expert_gate=f"{_HALF}.experts.{{e}}.gate_proj",
    expert_up=f"{_HALF}.experts.{{e}}.up_proj",
    expert_down=f"{_HALF}.experts.{{e}}.down_proj",
    shared_gate=f"{_HALF}.shared_expert.gate_proj",
    shared_up=f"{_HALF}.shared_expert.up_proj",
    shared_down=f"{_HALF}.shared_expert.down_proj",
)

LLAMA4 = {
    "Llama4ForCausalLM": Family(
        "llama4",
        _llama4,
        _NAMES,
        by_expert={
            ".experts.gate_up_proj": ExpertTensors(
                (".experts.{e}.gate_proj.weight", ".experts.{e}.up_proj.weight"), transposed=True, apart=True
            ),
            ".experts.down_proj": ExpertTensors((".experts.{e}.down_proj.weight",), transposed=True),
        },
        models="Llama 4, text",
        features="attention in chunks, layers without positions, experts with scaled inputs",
    )
}
