"""Dense families with norms, ropes or tensors of their own: Phi, OLMo, Cohere, GLM."""

from __future__ import annotations

from dataclasses import replace

from headrace.models.config_reader import ConfigReader
from headrace.models.families.reading import (
    FULL,
    SLIDING,
    Family,
    decoder,
    interleaved,
    layer_norm,
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
from headrace.models.names import HF_NAMES
from headrace.models.spec import ModelSpec

_FUSED_MLP = replace(HF_NAMES, gate="", up="", gate_up="model.layers.{i}.mlp.gate_up_proj")

_PHI_NAMES = replace(_FUSED_MLP, query="", key="", value="", qkv="model.layers.{i}.self_attn.qkv_proj")

_OLMO_NAMES = replace(
    HF_NAMES,
    input_norm="",
    mixer_post_norm="model.layers.{i}.post_attention_layernorm",
    post_norm="",
    feed_forward_post_norm="model.layers.{i}.post_feedforward_layernorm",
)

_COHERE_NAMES = replace(HF_NAMES, post_norm=HF_NAMES.input_norm)

_GLM4_NAMES = replace(
    _FUSED_MLP,
    mixer_post_norm="model.layers.{i}.post_self_attn_layernorm",
    feed_forward_post_norm="model.layers.{i}.post_mlp_layernorm",
)


def _phi3(config: ConfigReader) -> ModelSpec:
    """Phi-3, Phi-4 and Phi-4-mini: fused tensors, longrope, a part of each head rotated."""
    mixer, longest = read_attention(config, rotated=1.0)
    mixers = [with_window(mixer, read_window(config))] * read_layer_count(config)
    return decoder(config, "phi3", stacked(mixers, read_mlp(config)), rms_norm(config), longest)


def _olmo2(config: ConfigReader) -> ModelSpec:
    """Norms after each half, and over all heads of q and of k together."""
    bias, norm = config.flag("attention_bias", False), rms_norm(config)
    mixer, longest = read_attention(
        config, theta=500_000.0, qkv_bias=bias, out_bias=bias, qk_norm=norm, qk_norm_whole=True
    )
    layers = stacked([mixer] * read_layer_count(config), read_mlp(config), "post")
    return decoder(config, "olmo2", layers, norm, longest)


def _olmo3(config: ConfigReader) -> ModelSpec:
    """OLMo 2 with windows; a rope scaling is that of the layers without one."""
    bias, norm = config.flag("attention_bias", False), rms_norm(config)
    types = read_layer_types(config, lambda index: SLIDING if (index + 1) % 4 else FULL)
    windows = with_windows(config, types, read_window(config, 4096))
    mixers, longest = {}, 1
    for kind in dict.fromkeys(types):
        mixers[kind], reach = read_attention(
            config,
            layer_type=kind,
            theta=500_000.0,
            qkv_bias=bias,
            out_bias=bias,
            qk_norm=norm,
            qk_norm_whole=True,
        )
        longest = max(longest, reach)
    layers = [with_window(mixers[kind], window) for kind, window in zip(types, windows, strict=True)]
    return decoder(config, "olmo3", stacked(layers, read_mlp(config), "post"), norm, longest)


def _cohere2(config: ConfigReader) -> ModelSpec:
    """Both halves read one LayerNorm without bias; layers without a window have no rope; logits are scaled."""
    bias = config.flag("attention_bias", False)
    mixer, longest = read_attention(config, qkv_bias=bias, out_bias=bias)
    mixer = replace(mixer, rope=interleaved(mixer.rope))
    period = config.integer("sliding_window_pattern", 1, 1024, 4)
    types = read_layer_types(config, lambda index: SLIDING if (index + 1) % period else FULL)
    windows = with_windows(config, types, read_window(config, 4096))
    mixers = [
        replace(mixer, rope=None) if window is None else with_window(mixer, window) for window in windows
    ]
    return decoder(
        config, "cohere2", stacked(mixers, read_mlp(config), "parallel"),
        layer_norm(config, "layer_norm_eps", bias=False), longest, tied=True,
        logit_scale=config.number("logit_scale", 1e-6, 1e6, 0.0625),
    )  # fmt: skip


def _glm(config: ConfigReader) -> ModelSpec:
    """GLM-4-9B of 2024: half of each head rotated, neighbouring features together."""
    mixer, longest = read_attention(
        config, default_head_dim=128, rotated=0.5, qkv_bias=config.flag("attention_bias", True)
    )
    mixer = replace(mixer, rope=interleaved(mixer.rope))
    layers = stacked([mixer] * read_layer_count(config), read_mlp(config))
    return decoder(config, "glm", layers, rms_norm(config), longest)


def _glm4(config: ConfigReader) -> ModelSpec:
    """GLM-4-0414: `_glm` with norms after each half too."""
    spec = _glm(config)
    return replace(spec, family="glm4", layers=tuple(replace(layer, norms="both") for layer in spec.layers))


OTHERS = {
    "Phi3ForCausalLM": Family(
        "phi3",
        _phi3,
        _PHI_NAMES,
        models="Phi-3, Phi-4, Phi-4-mini",
        features="fused tensors, longrope, part of a head rotated",
    ),
    "Olmo2ForCausalLM": Family(
        "olmo2", _olmo2, _OLMO_NAMES, models="OLMo 2", features="norms after each half, over all heads"
    ),
    "Olmo3ForCausalLM": Family("olmo3", _olmo3, _OLMO_NAMES, models="OLMo 3", features="as OLMo 2, windows"),
    "Cohere2ForCausalLM": Family(
        "cohere2",
        _cohere2,
        _COHERE_NAMES,
        models="Command R7B and others of Cohere 2",
        features="parallel halves, LayerNorm without bias, layers without rope",
    ),
    "GlmForCausalLM": Family(
        "glm", _glm, _FUSED_MLP, models="GLM-4-9B", features="half of a head rotated, neighbours together"
    ),
    "Glm4ForCausalLM": Family(
        "glm4", _glm4, _GLM4_NAMES, models="GLM-4-0414", features="as GLM-4-9B, norms around each half"
    ),
}
