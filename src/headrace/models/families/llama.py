"""Llama and the families that follow its shape: RMSNorm before each half, gated feed-forward, rope."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.errors import UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.families.limits import MAX_INTERMEDIATE
from headrace.models.families.reading import (
    FULL,
    SLIDING,
    Family,
    decoder,
    read_activation,
    read_attention,
    read_layer_count,
    read_layer_types,
    read_mlp,
    read_window,
    rms_norm,
    stacked,
    with_window,
    with_windows,
)
from headrace.models.names import WeightNames
from headrace.models.rope_config import MAX_POSITION
from headrace.models.spec import MLPSpec, ModelSpec, Temperature


def _llama(config: ConfigReader) -> ModelSpec:
    bias = config.flag("attention_bias", False)
    mixer, longest = read_attention(config, qkv_bias=bias, out_bias=bias)
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    return decoder(
        config, "llama", stacked([mixer] * read_layer_count(config), mlp), rms_norm(config), longest
    )


def _mistral(config: ConfigReader) -> ModelSpec:
    """One window for every layer, or none."""
    if config.has("layer_types"):
        raise UnsupportedModel("a Mistral config with layer_types is not supported")
    mixer, longest = read_attention(config)
    mixers = [with_window(mixer, read_window(config))] * read_layer_count(config)
    return decoder(config, "mistral", stacked(mixers, read_mlp(config)), rms_norm(config), longest)


def _ministral3(config: ConfigReader) -> ModelSpec:
    """Mistral with queries whose temperature grows with their position."""
    mixer, longest = read_attention(config, default_head_dim=128)
    settings = config.table("rope_parameters") or config.table("rope_scaling")
    if settings is not None and settings.number("llama_4_scaling_beta", 0.0, 1e3, 0.0):
        length = settings.integer("original_max_position_embeddings", 1, MAX_POSITION)
        beta = settings.number("llama_4_scaling_beta", 0.0, 1e3)
        mixer = replace(mixer, temperature=Temperature(beta, length))
    mixers = [with_window(mixer, read_window(config))] * read_layer_count(config)
    return decoder(config, "ministral3", stacked(mixers, read_mlp(config)), rms_norm(config), longest)


def qwen_windows(config: ConfigReader) -> list[int | None]:
    """`layer_types` says which layers slide; without it, those from `max_window_layers` on."""
    window = read_window(config) if config.flag("use_sliding_window", False) else None
    first = config.integer("max_window_layers", 0, 1 << 20, 28)
    types = read_layer_types(config, lambda index: SLIDING if window and index >= first else FULL)
    return with_windows(config, types, window)


def _qwen2(config: ConfigReader) -> ModelSpec:
    mixer, longest = read_attention(config, qkv_bias=True)
    mixers = [with_window(mixer, window) for window in qwen_windows(config)]
    return decoder(config, "qwen2", stacked(mixers, read_mlp(config)), rms_norm(config), longest)


def _qwen3(config: ConfigReader) -> ModelSpec:
    bias, norm = config.flag("attention_bias", False), rms_norm(config)
    mixer, longest = read_attention(config, default_head_dim=128, qkv_bias=bias, out_bias=bias, qk_norm=norm)
    mixers = [with_window(mixer, window) for window in qwen_windows(config)]
    return decoder(config, "qwen3", stacked(mixers, read_mlp(config)), norm, longest)


def _smollm3(config: ConfigReader) -> ModelSpec:
    """Every fourth layer has no rope."""
    bias = config.flag("attention_bias", False)
    mixer, longest = read_attention(config, theta=2_000_000.0, qkv_bias=bias, out_bias=bias)
    count = read_layer_count(config)
    period = config.integer("no_rope_layer_interval", 1, 1024, 4)
    rotates = config.integers("no_rope_layers", count, 0, 1)
    if rotates is None:
        rotates = [int((index + 1) % period != 0) for index in range(count)]
    window = read_window(config) if config.flag("use_sliding_window", False) else None
    types = read_layer_types(config, lambda index: SLIDING if window and not rotates[index] else FULL)
    mixers = [
        with_window(mixer if turns else replace(mixer, rope=None), width)
        for turns, width in zip(rotates, with_windows(config, types, window), strict=True)
    ]
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    return decoder(config, "smollm3", stacked(mixers, mlp), rms_norm(config), longest, tied=True)


def granite_scales(config: ConfigReader) -> dict[str, Any]:
    """Fields of the spec. Granite multiplies embeddings and what each half adds, and divides the logits."""
    return {
        "embedding_scale": config.number("embedding_multiplier", 1e-6, 1e6, 1.0),
        "residual_scale": config.number("residual_multiplier", 1e-6, 1e6, 1.0),
        "logit_scale": 1.0 / config.number("logits_scaling", 1e-6, 1e6, 1.0),
    }


def _granite(config: ConfigReader) -> ModelSpec:
    bias = config.flag("attention_bias", False)
    scale = config.number("attention_multiplier", 1e-6, 1e6, 1.0)
    mixer, longest = read_attention(config, qkv_bias=bias, out_bias=bias, scale=scale)
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    layers = stacked([mixer] * read_layer_count(config), mlp)
    return decoder(config, "granite", layers, rms_norm(config), longest, **granite_scales(config))


def _granite_hybrid(config: ConfigReader) -> ModelSpec:
    """Granite 4 without state space layers and experts."""
    config.only("num_local_experts", (0,), 8)
    count = read_layer_count(config)
    types = config.texts("layer_types", count) or config.texts("layers_block_type", count) or ["mamba"]
    others = sorted({*types} - {"attention", FULL})
    if others:
        raise UnsupportedModel(f"layer type {others[0]!r:.80} in {config.where} is not supported")
    bias = config.flag("attention_bias", False)
    scale = config.number("attention_multiplier", 1e-6, 1e6, 1.0)
    mixer, longest = read_attention(config, qkv_bias=bias, out_bias=bias, scale=scale)
    if config.text("position_embedding_type", "nope") != "rope":
        mixer = replace(mixer, rope=None)
    wide = config.integer("shared_intermediate_size", 1, MAX_INTERMEDIATE, 1024)
    mlp = MLPSpec(wide, read_activation(config))
    return decoder(
        config,
        "granitemoehybrid",
        stacked([mixer] * count, mlp),
        rms_norm(config),
        longest,
        **granite_scales(config),
    )


def _seed_oss(config: ConfigReader) -> ModelSpec:
    bias, out_bias = config.flag("attention_bias", True), config.flag("attention_out_bias", False)
    mixer, longest = read_attention(config, default_head_dim=128, qkv_bias=bias, out_bias=out_bias)
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    return decoder(
        config, "seed_oss", stacked([mixer] * read_layer_count(config), mlp), rms_norm(config), longest
    )


def _internlm3(config: ConfigReader) -> ModelSpec:
    """Fields of the first configs are `qkv_bias` and `bias`; transformers writes `attention_bias` and `mlp_bias`."""
    others = config.flag("bias", False)
    qkv_bias = config.flag("attention_bias", config.flag("qkv_bias", False))
    out_bias = config.flag("attention_bias", others)
    mixer, longest = read_attention(config, default_head_dim=128, qkv_bias=qkv_bias, out_bias=out_bias)
    mlp = read_mlp(config, bias=config.flag("mlp_bias", others))
    return decoder(
        config, "internlm3", stacked([mixer] * read_layer_count(config), mlp), rms_norm(config), longest
    )


LLAMA_LIKE = {
    "LlamaForCausalLM": Family(
        "llama",
        _llama,
        models="Llama 1 to 3, SmolLM 2, and others of their shape",
        features="rope scaling: linear, dynamic NTK, YaRN, llama3",
    ),
    "MistralForCausalLM": Family("mistral", _mistral, models="Mistral", features="sliding window"),
    "Ministral3ForCausalLM": Family(
        "ministral3", _ministral3, models="Ministral 3", features="YaRN, queries' temperature by position"
    ),
    "Qwen2ForCausalLM": Family(
        "qwen2", _qwen2, models="Qwen2, Qwen2.5", features="biases, windows in some layers"
    ),
    "Qwen3ForCausalLM": Family("qwen3", _qwen3, models="Qwen3", features="norms of q and k"),
    "SmolLM3ForCausalLM": Family("smollm3", _smollm3, models="SmolLM 3", features="layers without rope"),
    "GraniteForCausalLM": Family(
        "granite", _granite, models="Granite 3, dense", features="scaled embeddings, residuals, logits"
    ),
    "GraniteMoeHybridForCausalLM": Family(
        "granitemoehybrid",
        _granite_hybrid,
        WeightNames(
            gate_up="model.layers.{i}.shared_mlp.input_linear",
            down="model.layers.{i}.shared_mlp.output_linear",
        ),
        models="Granite 4, dense",
        features="as Granite",
    ),
    "SeedOssForCausalLM": Family("seed_oss", _seed_oss, models="Seed-OSS", features="biases of q, k and v"),
    "InternLM3ForCausalLM": Family("internlm3", _internlm3, models="InternLM 3", features="as Llama"),
}
