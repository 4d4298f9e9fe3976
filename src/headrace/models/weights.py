"""The decoder's weights, in the layout that it multiplies with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.ops.signatures import Weight
from headrace.ops.table import DENSE

Array = Any
"""A tensor on the torch path. On the native path an array: float32, float16, or uint16 with the bits of bfloat16."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear map. `format` names the ops that can read `weight`.

    A dense weight is a tensor [O, I]; other formats are a headrace._native.PackedMatrix, which holds the bias too.
    """

    weight: Weight
    bias: Array | None = None  # [O]
    format: str = DENSE


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    qkv: Projection  # rows of the Hq query heads, then Hkv key heads, then Hkv value heads, D each
    out: Projection  # [H, Hq * D]
    query_norm: Array | None = None  # [D]
    key_norm: Array | None = None  # [D]


@dataclass(frozen=True, slots=True)
class MLPWeights:
    gate_up: Projection  # [2F, H], rows of gate above those of up; packed: 16 of each in turn
    down: Projection  # [H, F]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: Array  # [H]
    attention: AttentionWeights
    post_norm: Array  # [H]
    mlp: MLPWeights


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embed: Array  # [V, H]; the head's PackedMatrix where one matrix is both
    layers: tuple[LayerWeights, ...]
    final_norm: Array  # [H]
    head: Projection  # [V, H]; the embedding itself where they are tied

    @property
    def dtype(self) -> Any:
        """Of the embeddings, on the torch path: the compute type."""
        return self.embed.dtype

    @property
    def formats(self) -> tuple[str, ...]:
        """Weight formats in use, for binding the ops."""
        used = [self.head.format]
        for layer in self.layers:
            parts = (layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down)
            used.extend(part.format for part in parts)
        return tuple(dict.fromkeys(used))
