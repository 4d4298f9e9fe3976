"""Compiles a model into a tape: the list of native calls that one step makes, see csrc/tape.h.

The residual stream stays float32; inputs of a product are encoded as its matrix requires. The last layer after
attention and the final norm run only for the rows whose logits or hidden states are needed, the head only for rows
of logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace._native import Kernels, PackedMatrix, Tape, Team
from headrace.core.types import KVGroupSpec
from headrace.models.rope import inverse_frequencies, sink_position
from headrace.models.spec import AttentionSpec, LayerSpec, ModelSpec, RopeSpec
from headrace.models.weights import AttentionWeights, DecoderWeights, LayerWeights, MLPWeights, Projection
from headrace.runner.native_kv import NativeKV


@dataclass(frozen=True, slots=True)
class TapeLimits:
    """The largest step."""

    max_tokens: int
    max_seqs: int


def compile_tape(
    spec: ModelSpec,
    weights: DecoderWeights,
    kv: NativeKV,
    groups: Sequence[KVGroupSpec],
    kernels: Kernels,
    team: Team,
    limits: TapeLimits,
) -> tuple[Tape, int]:
    """The tape of a whole model, and its buffer of the selected rows' residual stream.

    Weights and KV memory must be of the same instruction set's layout as `kernels`.
    """
    tape = Tape(
        kernels,
        team,
        max_tokens=limits.max_tokens,
        max_seqs=limits.max_seqs,
        max_logits=limits.max_tokens,
        vocab_size=spec.vocab_size,
    )
    compiler = _Compiler(spec, tape, kv)
    compiler.add_caches(groups)
    compiler.embed(weights)
    last = len(spec.layers) - 1
    for index, (layer, part) in enumerate(zip(spec.layers, weights.layers, strict=True)):
        compiler.layer(index, layer, part, last=index == last)
    compiler.head(weights)
    return tape, compiler.stream


@dataclass(slots=True)
class _Compiler:
    """Appends a model's calls, reusing one buffer for values of the same role and format in every layer."""

    spec: ModelSpec
    tape: Tape
    kv: NativeKV
    scope: str = "tokens"  # turns to "logits" in the last layer
    stream: int = -1  # the residual stream's buffer
    caches: list[int] = field(default_factory=list)  # by layer
    buffers: dict[tuple[object, ...], int] = field(default_factory=dict)
    tables: dict[tuple[RopeSpec, int | None], int] = field(default_factory=dict)

    # ---- Buffers ----

    def add_caches(self, groups: Sequence[KVGroupSpec]) -> None:
        caches: dict[int, int] = {}
        for layout, group in zip(self.spec.kv_shapes, groups, strict=True):
            number = self.tape.add_group(
                block_size=group.block_size, num_blocks=group.num_blocks, sink_blocks=group.sink_blocks
            )
            for index in layout.layers:
                memory = self.kv.layers[index]
                caches[index] = self.tape.add_kv(
                    number,
                    self.kv.type,
                    memory.keys,
                    memory.values,
                    num_kv_heads=layout.num_kv_heads,
                    head_dim=layout.head_dim,
                    key_scales=memory.key_scales,
                    value_scales=memory.value_scales,
                )
        self.caches = [caches[index] for index in range(len(self.spec.layers))]

    def rows(self, role: str, type: str, cols: int, group: int = 0) -> int:
        """The buffer of that role; its padding stays zero, as every use writes the same columns."""
        key = (role, type, cols, group)
        if key not in self.buffers:
            self.buffers[key] = self.tape.add_rows(type, cols, group)
        return self.buffers[key]

    def rotation(self, rope: RopeSpec, limit: int | None) -> int:
        """Cosines and sines of a step, made once for all layers that use them."""
        key = (rope, limit)
        if key not in self.tables:
            frequencies, factor = inverse_frequencies(rope)
            self.tables[key] = self.tape.rotations(
                np.array(frequencies, dtype=np.float64), factor, limit=limit
            )
        return self.tables[key]

    def queries(self, role: str, features: int) -> int:
        key = (role, features)
        if key not in self.buffers:
            self.buffers[key] = self.tape.add_queries("f32" if self.kv.type == "f32" else "bf16", features)
        return self.buffers[key]

    # ---- The model, part by part ----

    def embed(self, weights: DecoderWeights) -> None:
        self.stream = self.rows("stream", "f32", self.spec.hidden_size)
        self.tape.embed(weights.embed, self.stream)

    def layer(self, index: int, spec: LayerSpec, weights: LayerWeights, *, last: bool) -> None:
        mixed = self.attention(index, spec.mixer, weights, last=last)
        if last:
            self.keep_selected_rows(index)
        self.project(index, "out", mixed, weights.attention.out, self.stream, gathered=last, epilogue="add")
        self.mlp(index, spec, weights.mlp, weights)

    def attention(self, index: int, spec: AttentionSpec, weights: LayerWeights, *, last: bool) -> int:
        """Norm, QKV, rope and cache, attention; gives the buffer of [T, Hq * D]."""
        width = spec.num_heads * spec.head_dim
        both = width + 2 * spec.num_kv_heads * spec.head_dim
        normed = self.encode(
            index, "norm", self.stream, _matrix(weights.attention.qkv), norm=weights.input_norm
        )
        qkv = self.rows("qkv", "f32", both)
        self.tape.linear(normed, _matrix(weights.attention.qkv), qkv, name="qkv", layer=index)
        q = self.queries("q", width)
        limit = sink_position(spec)
        q_sink = None if limit is None else self.queries("q_sink", width)
        self.rope(index, spec, weights.attention, qkv, q, q_sink)
        form = "f32" if last else self.direct_type(weights.attention.out)
        mixed = self.rows("mixed", form, width)
        self.tape.attention(
            q,
            q_sink,
            self.caches[index],
            mixed,
            num_heads=spec.num_heads,
            scale=spec.scale,
            window=spec.window or 0,
            sinks=spec.sinks,
            soft_cap=spec.soft_cap or 0.0,
            layer=index,
        )
        return mixed

    def rope(
        self, index: int, spec: AttentionSpec, weights: AttentionWeights, qkv: int, q: int, q_sink: int | None
    ) -> None:
        self.tape.rope(
            qkv,
            self.caches[index],
            q,
            num_heads=spec.num_heads,
            rotated=spec.rope.dim,
            rotation=self.rotation(spec.rope, None),
            sink_rotation=None if q_sink is None else self.rotation(spec.rope, sink_position(spec)),
            q_sink=q_sink,
            q_norm=weights.query_norm,
            k_norm=weights.key_norm,
            eps=self.spec.norm_eps,
            layer=index,
        )

    def keep_selected_rows(self, index: int) -> None:
        """Later calls work only on the rows whose logits or hidden states are needed."""
        size = self.spec.hidden_size
        selected = self.rows("selected", "f32", size)
        self.tape.encode(self.stream, selected, size, scope="gathered", name="gather", layer=index)
        self.stream, self.scope = selected, "logits"

    def mlp(self, index: int, spec: LayerSpec, weights: MLPWeights, layer: LayerWeights) -> None:
        normed = self.encode(index, "norm", self.stream, _matrix(weights.gate_up), norm=layer.post_norm)
        wide = self.rows("wide", self.direct_type(weights.down), spec.feed_forward.intermediate_size)
        self.tape.linear(
            normed,
            _matrix(weights.gate_up),
            wide,
            epilogue="gate",
            gate=spec.feed_forward.activation,
            scope=self.scope,
            name="gate_up",
            layer=index,
        )
        self.project(index, "down", wide, weights.down, self.stream, epilogue="add")

    def head(self, weights: DecoderWeights) -> None:
        normed = self.encode(-1, "norm", self.stream, _matrix(weights.head), norm=weights.final_norm)
        self.tape.logits(normed, _matrix(weights.head), self.spec.final_soft_cap or 0.0)

    # ---- Products and their inputs ----

    def direct_type(self, projection: Projection) -> str:
        """The type in which a float result is written for `projection` to read: as it is, or to be encoded."""
        selected = _matrix(projection).input
        return "f32" if selected == "i8" else selected

    def project(
        self,
        index: int,
        name: str,
        source: int,
        projection: Projection,
        out: int,
        *,
        epilogue: str,
        gathered: bool = False,
    ) -> None:
        """A product with rows that may still have to be encoded or gathered."""
        matrix = _matrix(projection)
        if gathered or matrix.input == "i8":
            source = self.encode(index, f"encode_{name}", source, matrix, gathered=gathered)
        self.tape.linear(source, matrix, out, epilogue=epilogue, scope=self.scope, name=name, layer=index)

    def encode(
        self,
        index: int,
        name: str,
        source: int,
        matrix: PackedMatrix,
        *,
        norm: NDArray[np.float32] | None = None,
        gathered: bool = False,
    ) -> int:
        """Rows in the format that `matrix` reads, normalised if there is a `norm`; gives their buffer."""
        out = self.rows(
            f"encoded_{name}", matrix.input, matrix.cols, matrix.group if matrix.input == "i8" else 0
        )
        self.tape.encode(
            source,
            out,
            matrix.cols,
            norm=norm,
            eps=0.0 if norm is None else self.spec.norm_eps,
            scope="gathered" if gathered else self.scope,
            name=name,
            layer=index,
        )
        return out


def _matrix(projection: Projection) -> PackedMatrix:
    assert isinstance(projection.weight, PackedMatrix)
    return projection.weight
