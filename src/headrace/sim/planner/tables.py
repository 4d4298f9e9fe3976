"""Comparisons: formats, context lengths, batches, and kinds of attention, a row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.eviction import Eviction
from headrace.errors import ConfigError
from headrace.models.spec import AttentionSpec, LatentSpec
from headrace.plan.hardware import Hardware
from headrace.sim.planner.formats import formats_of, store
from headrace.sim.planner.memory import Footprint, Placement, allowed
from headrace.sim.planner.model import PlannedModel
from headrace.sim.planner.search import BATCHES
from headrace.sim.planner.speed import Point, Speed, Traffic

CONTEXTS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 1_048_576)
COMPARED_BATCH, COMPARED_CONTEXT = 32, 8192
_GROUPED = 8
_LATENT, _ROPE = 512, 64
"""Features of the latent and of the rotated key in DeepSeek-V2 and V3."""


@dataclass(frozen=True, slots=True)
class FormatRow:
    """One format on the devices of a machine. Bytes of `weights` are those of all devices, others of one.

    kv_token: of one token, on all devices. needed: of each device, for one sequence of the load. context: the longest
    one of a single sequence; batch: the most sequences of the load; 0 where nothing fits.
    """

    format: str
    label: str
    bits: float
    weights: int
    kv_token: int
    activations: int
    needed: int
    context: int
    batch: int


@dataclass(frozen=True, slots=True)
class ContextRow:
    """Sequences of so many tokens: KV of one on all devices, the most at once, a prefill, and a step with that batch
    and with one."""

    context: int
    kv: int
    batch: int
    prefill_s: float
    decode_s: float
    decode_one_s: float


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """A kind of attention in all layers that attend: bytes of KV of a token, and of 32 sequences of 8,192 tokens; the
    seconds of reading those once at the devices' full bandwidth. own: the model's."""

    kind: str
    kv_token: int
    kv_batch: int
    read_s: float
    own: bool


def widest(model: PlannedModel, hardware: Hardware) -> Placement:
    """One copy over all devices of the machine, by tensor parallelism as far as the heads allow."""
    return max(allowed(model.program, hardware), key=lambda one: (one.devices, one.tp))


def format_rows(
    model: PlannedModel,
    hardware: Hardware,
    traffic: Traffic,
    formats: Sequence[str] | None = None,
    eviction: Eviction | None = None,
) -> tuple[FormatRow, ...]:
    """Every format that can hold the model. Raises ConfigError where one that was asked for cannot."""
    rows = []
    for name in formats_of(hardware, formats):
        try:
            stored = store(model, hardware, name)
        except ConfigError:
            if formats is not None:
                raise
            continue
        footprint = Footprint(stored, hardware, widest(model, hardware), eviction)
        kv = stored.memory.kv
        rows.append(
            FormatRow(
                stored.format,
                stored.label,
                stored.bits,
                stored.weight_bytes,
                sum(kv.token_bytes(layout) for layout in model.program.kv if layout.state is None),
                footprint.activations(1) + footprint.evicting(1, traffic.context),
                footprint.needed(1, traffic.context),
                footprint.largest_context(),
                footprint.largest_batch(traffic.context),
            )
        )
    return tuple(rows)


def batch_rows(speed: Speed, traffic: Traffic) -> tuple[Point, ...]:
    """Speed by batch, up to the largest that fits: powers of two, and that one."""
    most = speed.footprint.largest_batch(traffic.context)
    least = speed.footprint.placement.pp
    sizes = [batch for batch in BATCHES if least <= batch < most and batch & (batch - 1) == 0]
    return tuple(speed.point(batch, traffic) for batch in [*sizes, most] if batch)


def context_rows(speed: Speed) -> tuple[ContextRow, ...]:
    """By length of the context, up to the model's."""
    longest = speed.footprint.stored.model.spec.max_position
    lengths = [*(length for length in CONTEXTS if length < longest), longest]
    rows = []
    for length in lengths:
        batch = speed.footprint.largest_batch(length)
        if not batch:
            break
        kv = speed.footprint.kv(1, length) * speed.footprint.placement.devices
        rows.append(
            ContextRow(
                length, kv, batch, speed.prefill_s(length), speed.decode_s(batch, length), speed.decode_s(1, length)
            )
        )  # fmt: skip
    return tuple(rows)


def attention_rows(
    model: PlannedModel, hardware: Hardware, element_bytes: int = 2
) -> tuple[AttentionRow, ...]:
    """MHA, GQA, MQA and MLA with the heads of this model, all layers at full context: what each would keep.

    Empty for a model without attention.
    """
    mixers = [
        layer.mixer for layer in model.spec.layers if isinstance(layer.mixer, AttentionSpec | LatentSpec)
    ]
    if not mixers:
        return ()
    heads = max(mixer.num_heads for mixer in mixers)
    latent = isinstance(mixers[0], LatentSpec)
    both = max(
        mixer.key_dim + mixer.rope_dim + mixer.value_dim
        if isinstance(mixer, LatentSpec)
        else 2 * mixer.head_dim
        for mixer in mixers
    )  # a key and a value
    own = 1 if latent else max(mixer.num_kv_heads for mixer in mixers)
    kinds = [("MHA", heads), ("GQA", own if 1 < own < heads else min(_GROUPED, heads)), ("MQA", 1)]
    rows = [
        (
            f"{kind}, {count} KV heads" if count > 1 else f"{kind}, 1 KV head",
            count * both,
            not latent and count == own,
        )
        for kind, count in kinds
    ]
    compressed = (
        mixers[0].latent + mixers[0].rope_dim if isinstance(mixers[0], LatentSpec) else _LATENT + _ROPE
    )
    rows.append((f"MLA, {compressed} features", compressed, latent))
    sequences = COMPARED_BATCH * COMPARED_CONTEXT
    found: dict[str, AttentionRow] = {}
    for kind, elements, is_own in rows:
        token = elements * element_bytes * len(mixers)
        found[kind] = AttentionRow(
            kind, token, token * sequences, token * sequences / (hardware.bandwidth * hardware.count), is_own
        )
    return tuple(found.values())
