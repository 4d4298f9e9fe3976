"""One attention layer over the paged cache, and the rotations that its step needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from headrace.models.batch import Batch, GroupBatch, LayerKV
from headrace.models.rope import inverse_frequencies, sink_position
from headrace.models.spec import AttentionSpec, ModelSpec, RopeSpec
from headrace.models.weights import AttentionWeights
from headrace.ops.table import Ops

RotationKey = tuple[RopeSpec, int | None]
"""A rope and the largest position that queries are rotated at (None: their own)."""

Tables = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, [T, R/2] float32 each."""


@dataclass(frozen=True, slots=True)
class Rotations:
    """Computes the cosines and sines of one step for every rope that a model uses."""

    ops: Ops
    frequencies: Mapping[RopeSpec, tuple[torch.Tensor, float]]  # [R/2] float64, attention factor
    keys: tuple[RotationKey, ...]

    @classmethod
    def of(cls, spec: ModelSpec, ops: Ops, device: torch.device) -> Rotations:
        frequencies = {}
        for rope in dict.fromkeys(layer.mixer.rope for layer in spec.layers):
            values, factor = inverse_frequencies(rope)
            frequencies[rope] = (torch.tensor(values, dtype=torch.float64, device=device), factor)
        keys: dict[RotationKey, None] = {}
        for layer in spec.layers:
            keys[(layer.mixer.rope, None)] = None
            keys[(layer.mixer.rope, sink_position(layer.mixer))] = None
        return cls(ops, frequencies, tuple(keys))

    def at(self, positions: torch.Tensor) -> dict[RotationKey, Tables]:
        """Tables for positions [T], one for every key."""
        tables = {}
        for rope, limit in self.keys:
            frequencies, factor = self.frequencies[rope]
            clamped = positions if limit is None else positions.clamp(max=limit)
            tables[(rope, limit)] = self.ops.rope_tables(clamped, frequencies, factor)
        return tables


class Attention:
    """Grouped-query attention with rope; writes the step's keys and values before it reads."""

    def __init__(self, spec: AttentionSpec, weights: AttentionWeights, ops: Ops, norm_eps: float) -> None:
        self._spec = spec
        self._weights = weights
        self._ops = ops
        self._norm_eps = norm_eps
        self._qkv = ops.linear[weights.qkv.format]
        self._out = ops.linear[weights.out.format]
        self._sink_key: RotationKey | None = None
        if (limit := sink_position(spec)) is not None:
            self._sink_key = (spec.rope, limit)

    def __call__(
        self,
        x: torch.Tensor,
        batch: Batch,
        group: GroupBatch,
        kv: LayerKV,
        rotations: Mapping[RotationKey, Tables],
    ) -> torch.Tensor:
        """x [T, H] normalised hidden states; gives [T, H]."""
        spec, weights, ops = self._spec, self._weights, self._ops
        widths = [spec.num_heads * spec.head_dim, *[spec.num_kv_heads * spec.head_dim] * 2]
        q, k, v = self._qkv(x, weights.qkv.weight, weights.qkv.bias).split(widths, dim=-1)
        q = q.unflatten(-1, (spec.num_heads, spec.head_dim))  # [T, Hq, D]
        k = k.unflatten(-1, (spec.num_kv_heads, spec.head_dim))  # [T, Hkv, D]
        v = v.unflatten(-1, (spec.num_kv_heads, spec.head_dim))  # [T, Hkv, D]
        if weights.query_norm is not None and weights.key_norm is not None:
            q = ops.rms_norm(q, weights.query_norm, self._norm_eps)
            k = ops.rms_norm(k, weights.key_norm, self._norm_eps)
        q_sink = None if self._sink_key is None else ops.apply_rope(q, *rotations[self._sink_key])
        tables = rotations[(spec.rope, None)]
        q = ops.apply_rope(q, *tables)
        k = ops.apply_rope(k, *tables)
        if group.written is not None:
            k, v = k[group.written], v[group.written]
        ops.write_kv(k, v, kv.key, kv.value, group.slots)
        mixed = ops.paged_attention(
            q,
            kv.key,
            kv.value,
            batch.cu_q,
            batch.kv_lens,
            batch.positions,
            group.block_tables,
            group.dropped,
            sink_blocks=group.sink_blocks,
            block_size=group.block_size,
            scale=spec.scale,
            window=spec.window,
            sinks=spec.sinks,
            soft_cap=spec.soft_cap,
            q_sink=q_sink,
        )  # [T, Hq, D]
        return self._out(mixed.flatten(1), weights.out.weight, weights.out.bias)  # [T, H]
