"""Rope settings of a config.json, in the old and the new HF layout, as a RopeSpec."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.spec import RopeSpec

MAX_POSITION = 1 << 27
MAX_FACTOR = 4096.0
UNTURNED = 2e30
"""The largest divisor of a frequency. llama.cpp's converter gives 1e30 to features that do not turn."""


def read_rope(
    config: ConfigReader,
    head_dim: int,
    max_position: int,
    *,
    layer_type: str | None = None,
    rotated: float | None = None,
    theta: float = 10_000.0,
) -> tuple[RopeSpec, int]:
    """The rope of a model and the longest context that it allows, in tokens.

    layer_type: of the layers whose rope it is, where ropes differ; settings that are given once are those of layers
    with full attention, and the base of the others is `rope_local_base_freq`. rotated, theta: the part of a head that
    is rotated and the base, where the config does not say; None: families that rotate whole heads only.

    Reads `rope_parameters` (transformers 5) or `rope_scaling` with `rope_theta` (before). The longest context
    follows vLLM: linear and dynamic multiply `max_position`, YaRN multiplies the original length, others keep it.
    Raises UnsupportedModel for a scaling that is not implemented and CheckpointError for values out of range.
    """
    scaling = config.table("rope_scaling")
    if scaling is None or not scaling.fields:
        scaling = config.table("rope_parameters") or ConfigReader({}, config.where)
    outer_theta = config.number("rope_theta", 1.5, 1e15, theta)
    if any(isinstance(value, Mapping) for value in scaling.fields.values()):
        if layer_type is None:
            raise UnsupportedModel(
                f"rope settings that differ between layer types ({config.where}) are not supported"
            )
        scaling = scaling.table(layer_type) or ConfigReader({}, config.where)
    elif layer_type == "sliding_attention":
        scaling = ConfigReader({}, config.where)
    if layer_type == "sliding_attention" and config.has("rope_local_base_freq"):
        outer_theta = config.number("rope_local_base_freq", 1.5, 1e15)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    part = 1.0
    if kind != "proportional":  # which rotates a part of a head in a way of its own
        for reader in (config, scaling) if rotated is None else ():
            reader.only("partial_rotary_factor", (1, 1.0), 1.0)
        rotated = 1.0 if rotated is None else rotated
        part = scaling.number(
            "partial_rotary_factor", 0.0, 1.0, config.number("partial_rotary_factor", 0.0, 1.0, rotated)
        )
    dim = int(head_dim * part)
    if dim < 2 or dim % 2:
        raise CheckpointError(
            f"{dim} of {head_dim} channels are rotated ({config.where}): the number must be even and at least 2"
        )
    plain = RopeSpec(theta=scaling.number("rope_theta", 1.5, 1e15, outer_theta), dim=dim)
    if kind not in _KINDS:
        raise UnsupportedModel(f"rope type {kind!r:.80} is not supported, only {', '.join(_KINDS)}")
    rope, longest = _KINDS[kind](plain, scaling, config, max_position)
    if longest > MAX_POSITION:
        raise CheckpointError(f"rope settings in {config.where} ask for a context of {longest} positions")
    return rope, longest


_Read = Callable[[RopeSpec, ConfigReader, ConfigReader, int], tuple[RopeSpec, int]]


def _default(
    plain: RopeSpec, scaling: ConfigReader, config: ConfigReader, max_position: int
) -> tuple[RopeSpec, int]:
    return plain, max_position


def _linear(
    plain: RopeSpec, scaling: ConfigReader, config: ConfigReader, max_position: int
) -> tuple[RopeSpec, int]:
    factor = scaling.number("factor", 1.0, MAX_FACTOR)
    return replace(plain, kind="linear", factor=factor), int(max_position * factor)


def _dynamic(
    plain: RopeSpec, scaling: ConfigReader, config: ConfigReader, max_position: int
) -> tuple[RopeSpec, int]:
    if plain.dim < 4:
        raise CheckpointError(f"dynamic rope needs a head_dim of at least 4, got {plain.dim}")
    factor = scaling.number("factor", 1.0, MAX_FACTOR)
    rope = replace(plain, kind="dynamic", factor=factor, original_max_position=max_position)
    return rope, int(max_position * factor)


def _yarn(
    plain: RopeSpec, scaling: ConfigReader, config: ConfigReader, max_position: int
) -> tuple[RopeSpec, int]:
    original = _original_length(scaling, config, max_position)
    factor = scaling.number("factor", 1.0, MAX_FACTOR, max_position / original)
    beta_fast = scaling.number("beta_fast", 0.0, 1e6, 32.0) or 32.0  # 0 means unset, as in HF
    beta_slow = scaling.number("beta_slow", 0.0, 1e6, 1.0) or 1.0
    if beta_fast < beta_slow:
        raise CheckpointError(
            f"beta_fast {beta_fast:g} in {scaling.where} must not be below beta_slow {beta_slow:g}"
        )
    rope = replace(
        plain,
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        attention_factor=scaling.optional_number("attention_factor", 0.0, MAX_FACTOR),
        mscale=scaling.optional_number("mscale", 0.0, MAX_FACTOR),
        mscale_all_dim=scaling.optional_number("mscale_all_dim", 0.0, MAX_FACTOR),
        truncate=scaling.flag("truncate", True),
    )
    return rope, int(original * factor)


def _llama3(
    plain: RopeSpec, scaling: ConfigReader, config: ConfigReader, max_position: int
) -> tuple[RopeSpec, int]:
    low = scaling.number("low_freq_factor", 0.0, MAX_FACTOR)
    high = scaling.number("high_freq_factor", 0.0, MAX_FACTOR)
    if high < low:
        raise CheckpointError(
            f"high_freq_factor {high:g} in {scaling.where} must not be below low_freq_factor {low:g}"
        )
    rope = replace(
        plain,
        kind="llama3",
        factor=scaling.number("factor", 1.0, MAX_FACTOR),
        original_max_position=_original_length(scaling, config, max_position),
        low_freq_factor=low,
        high_freq_factor=high,
    )
    return rope, max_position


def _factors(
    plain: RopeSpec, scaling: ConfigReader, config: ConfigReader, max_position: int
) -> tuple[RopeSpec, int]:
    """A divisor for each frequency: no HF config has this kind, but GGUF files hold such a tensor."""
    factors = scaling.numbers("factors", plain.dim // 2, 1 / MAX_FACTOR, UNTURNED)
    return replace(plain, kind="factors", factors=factors), max_position


def _longrope(
    plain: RopeSpec, scaling: ConfigReader, config: ConfigReader, max_position: int
) -> tuple[RopeSpec, int]:
    """Two lists of divisors: for contexts up to the original length, and for longer ones."""
    original = _original_length(scaling, config, max_position)
    factor = scaling.number("factor", 1.0, MAX_FACTOR, max(1.0, max_position / original))
    default = 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(max(2, original)))
    half = plain.dim // 2
    rope = replace(
        plain,
        kind="longrope",
        factor=factor,
        original_max_position=original,
        attention_factor=scaling.number("attention_factor", 0.0, MAX_FACTOR, default),
        factors=scaling.numbers("long_factor", half, 1 / MAX_FACTOR, MAX_FACTOR),
        short_factors=scaling.numbers("short_factor", half, 1 / MAX_FACTOR, MAX_FACTOR),
    )
    return rope, max_position


def _proportional(
    plain: RopeSpec, scaling: ConfigReader, config: ConfigReader, max_position: int
) -> tuple[RopeSpec, int]:
    """The first part of a head's pairs at the frequencies of a head that is rotated whole; the others stay."""
    angles = int(scaling.number("partial_rotary_factor", 0.0, 1.0, 1.0) * plain.dim // 2)
    factor = scaling.number("factor", 1.0, MAX_FACTOR, 1.0)
    return replace(plain, kind="proportional", angles=angles, factor=factor), max_position


def _original_length(scaling: ConfigReader, config: ConfigReader, max_position: int) -> int:
    """Context length of pre-training; a field outside the rope settings wins, as in HF."""
    inner = scaling.integer("original_max_position_embeddings", 1, MAX_POSITION, max_position)
    return config.integer("original_max_position_embeddings", 1, MAX_POSITION, inner)


_KINDS: dict[str, _Read] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "factors": _factors,
    "longrope": _longrope,
    "proportional": _proportional,
    "su": _longrope,  # its first name
}
