"""Endless streams from a model of full attention (StreamingLLM, Xiao et al. 2023)."""

from __future__ import annotations

from dataclasses import replace

from headrace.core.types import Retention
from headrace.errors import ConfigError
from headrace.models.rope import dynamic_theta
from headrace.models.spec import AttentionSpec, LatentSpec, LayerSpec, ModelSpec, RecurrentSpec

STREAM_MAX_POSITION = 1 << 20
"""Tokens of one stream. No layer attends further back than its window; the bound is for the host's token lists."""


def with_streaming(spec: ModelSpec, sinks: int, window: int) -> ModelSpec:
    """The same model with every full-attention layer turned into `sinks` first and `window` last positions.

    Layers that already have a window keep it. `max_position` becomes STREAM_MAX_POSITION, as distances stay
    within the model's context. Raises ConfigError if sinks + window is more than that, where there is no
    full-attention layer to turn, and for what has no meaning beyond the model's own context.
    """
    if sinks < 0 or window < 1 or sinks + window > spec.max_position:
        raise ConfigError(
            f"attention sinks {sinks} and window {window} must be at least 0 and 1 and together at most the "
            f"model's {spec.max_position} positions"
        )
    if any(isinstance(layer.mixer, LatentSpec) for layer in spec.layers):
        raise ConfigError("attention_sinks and sliding_window are not supported for latent attention")
    if spec.learned_positions:
        raise ConfigError(
            "attention_sinks and sliding_window are not supported for learned positions, of which this model has "
            f"{spec.learned_positions}"
        )
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)]
    if all(mixer.retention is Retention.WINDOW for mixer in mixers):
        raise ConfigError(
            "attention_sinks and sliding_window change nothing in this model: every layer of it has a window of its own"
        )
    if sinks and any(mixer.alibi for mixer in mixers):
        raise ConfigError(
            "attention_sinks are not supported for linear biases (ALiBi), by which the first tokens fade as a sequence "
            "grows; sliding_window alone is"
        )
    layers = tuple(_streaming_layer(layer, sinks, window) for layer in spec.layers)
    return replace(spec, layers=layers, max_position=max(spec.max_position, STREAM_MAX_POSITION))


def _streaming_layer(layer: LayerSpec, sinks: int, window: int) -> LayerSpec:
    mixer = layer.mixer
    if isinstance(mixer, RecurrentSpec):
        return layer  # its state has one size at any length
    assert isinstance(mixer, AttentionSpec)
    rope = mixer.rope
    if (
        rope is not None and rope.kind == "dynamic"
    ):  # its base follows the longest distance, which is now the cache's own length
        rope = replace(rope, kind="default", theta=dynamic_theta(rope, sinks + window))
    if mixer.retention is not Retention.FULL:
        return replace(layer, mixer=replace(mixer, rope=rope))
    return replace(
        layer, mixer=replace(mixer, rope=rope, retention=Retention.SINKS, window=window, sinks=sinks)
    )
