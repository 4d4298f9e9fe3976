"""Inverse frequencies of every supported rope scaling, in float64, and positions of sinks. Standard library only."""

from __future__ import annotations

import math
from dataclasses import replace

from headrace.core.types import Retention
from headrace.models.spec import AttentionSpec, LatentSpec, LayerSpec, ModelSpec, RecurrentSpec, RopeSpec


def inverse_frequencies(rope: RopeSpec) -> tuple[list[float], float]:
    """R/2 inverse frequencies in radians a position, and the factor on cosines and sines (1 without YaRN or longrope).

    A function of the config alone: tokens do not depend on how much memory is free.
    """
    theta = dynamic_theta(rope) if rope.kind == "dynamic" else rope.theta
    plain = [theta ** (-index / rope.dim) for index in range(0, rope.dim, 2)]
    if rope.kind == "linear":  # Chen et al. 2023: positions divided by the factor
        return [freq / rope.factor for freq in plain], 1.0
    if rope.kind == "factors":
        return [freq / factor for freq, factor in zip(plain, rope.factors, strict=True)], 1.0
    if rope.kind == "longrope":
        divided = [freq / factor for freq, factor in zip(plain, rope.factors, strict=True)]
        return divided, rope.attention_factor or 1.0
    if rope.kind == "proportional":
        turned = [freq / rope.factor for freq in plain[: rope.angles]]
        return turned + [0.0] * (len(plain) - rope.angles), 1.0
    if rope.kind == "llama3":
        return [_llama3(rope, freq) for freq in plain], 1.0
    if rope.kind == "yarn":
        return _yarn(rope, plain), _yarn_attention_factor(rope)
    return plain, 1.0


def with_context(spec: ModelSpec, max_model_len: int | None) -> ModelSpec:
    """The same model for contexts of at most so many tokens, where the user sets a limit: longrope has frequencies of
    their own for those up to the original length."""

    def fitted(layer: LayerSpec) -> LayerSpec:
        if isinstance(layer.mixer, RecurrentSpec):
            return layer
        rope = layer.mixer.rope
        if (
            isinstance(layer.mixer, LatentSpec)
            or rope is None
            or rope.kind != "longrope"
            or not rope.short_factors
        ):
            return layer
        length = spec.max_position if max_model_len is None else max_model_len
        factors = rope.short_factors if length <= rope.original_max_position else rope.factors
        mixer = replace(layer.mixer, rope=replace(rope, factors=factors, short_factors=()))
        return replace(layer, mixer=mixer)

    return replace(spec, layers=tuple(fitted(layer) for layer in spec.layers))


def sink_position(spec: AttentionSpec) -> int | None:
    """A query's position for the sinks once tokens were dropped: its index in a full cache (Xiao et al. 2023)."""
    if spec.retention is not Retention.SINKS or spec.window is None or spec.sinks == 0 or spec.rope is None:
        return None
    return spec.sinks + spec.window - 1


def alibi_slopes(num_heads: int, largest: float) -> tuple[float, ...]:
    """What each head's scores lose with each position: powers of two whose exponents rise evenly to `largest`. Where
    the number of heads is not a power of two, every second one of the next power's comes first, as in MPT and Bloom."""
    whole = 1 << (num_heads - 1).bit_length()
    slopes = [2.0 ** (-largest * (index + 1) / whole) for index in range(whole)]
    return tuple(slopes if whole == num_heads else (slopes[1::2] + slopes[::2])[:num_heads])


def yarn_scale(rope: RopeSpec) -> float:
    """The factor on the logits of latent attention: there YaRN's `mscale_all_dim` is applied to queries and keys
    (DeepSeek-AI 2024, as in HF's yarn_apply_mscale)."""
    return _mscale(rope.factor, rope.mscale_all_dim) ** 2 if rope.mscale_all_dim else 1.0


def dynamic_theta(rope: RopeSpec, length: int | None = None) -> float:
    """Base of dynamic NTK scaling for a context of `length` tokens; None is the context that the config allows.

    HF grows the base with the longest sequence seen so far, so that a request's tokens depend on what ran before.
    Here, as in vLLM, it is the base that HF uses for a sequence of `factor` times the original length, and follows
    the config alone: not the memory that is free today, and no option. Up to the original length rope is plain.
    """
    longest = rope.factor * rope.original_max_position if length is None else length
    stretch = rope.factor * max(longest, rope.original_max_position) / rope.original_max_position
    return float(rope.theta * (stretch - (rope.factor - 1.0)) ** (rope.dim / (rope.dim - 2)))


def _llama3(rope: RopeSpec, freq: float) -> float:
    """Long waves slowed by the factor, short ones kept, a linear blend between (Meta 2024, Llama 3.1)."""
    turns = rope.original_max_position * freq / (2 * math.pi)  # rotations over the original context
    if turns >= rope.high_freq_factor:
        return freq
    if turns < rope.low_freq_factor:
        return freq / rope.factor
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1 - smooth) * freq / rope.factor + smooth * freq


def _yarn(rope: RopeSpec, plain: list[float]) -> list[float]:
    """NTK by parts (Peng et al. 2023, section 3.2)."""
    low = _dimension_of(rope, rope.beta_fast)
    high = _dimension_of(rope, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    mixed = []
    for index, freq in enumerate(plain):
        ramp = min(max((index - low) / (high - low), 0.0), 1.0)  # 0 keeps the frequency, 1 divides it
        mixed.append(freq / rope.factor * ramp + freq * (1 - ramp))
    return mixed


def _dimension_of(rope: RopeSpec, turns: float) -> float:
    """The (fractional) pair of channels that makes `turns` rotations over the original context."""
    return (
        rope.dim * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
    )


def _yarn_attention_factor(rope: RopeSpec) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
