"""The decoder's weights, in the layout that it multiplies with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.ops.signatures import Weight
from headrace.ops.table import DENSE


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear map. `format` names the ops that can read `weight`; a dense weight is a tensor [O, I]."""

    weight: Weight
    bias: torch.Tensor | None = None  # [O]
    format: str = DENSE


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    qkv: Projection  # rows of the Hq query heads, then Hkv key heads, then Hkv value heads, D each
    out: Projection  # [H, Hq * D]
    query_norm: torch.Tensor | None = None  # [D]
    key_norm: torch.Tensor | None = None  # [D]


@dataclass(frozen=True, slots=True)
class MLPWeights:
    gate_up: Projection  # [2F, H], rows of gate above those of up
    down: Projection  # [H, F]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: torch.Tensor  # [H]
    attention: AttentionWeights
    post_norm: torch.Tensor  # [H]
    mlp: MLPWeights


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embed: torch.Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [H]
    head: Projection  # [V, H]; the embedding itself where they are tied

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    @property
    def formats(self) -> tuple[str, ...]:
        """Weight formats in use, for binding the ops."""
        used = [self.head.format]
        for layer in self.layers:
            parts = (layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down)
            used.extend(part.format for part in parts)
        return tuple(dict.fromkeys(used))
