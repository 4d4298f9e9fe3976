"""Compiles a program into a tape: the list of native calls that one step makes, see csrc/tape.h.

The residual stream stays float32; what enters a product is encoded as its matrix reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

from headrace._native import Kernels, PackedMatrix, Tape, Team
from headrace.core.types import KVGroupSpec
from headrace.models.rope import inverse_frequencies
from headrace.models.weights import Weights
from headrace.program.placement import Call, Encoding, Place, Type, place
from headrace.program.records import (
    Activate,
    Add,
    Attention,
    Combine,
    Conv,
    Delta,
    Embed,
    Experts,
    Head,
    Heads,
    HeadsLinear,
    Latent,
    Linear,
    Norm,
    Op,
    Program,
    Rotations,
    Route,
    Ungroup,
    WeightRef,
)
from headrace.runner.native_kv import NativeKV
from headrace.runner.tape_memory import TapeLimits, add_caches, add_states, set_eviction


def compile_tape(
    program: Program,
    weights: Weights,
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
        max_logits=limits.max_tokens if program.of_kind("logits") else 1,
        vocab_size=program.vocab_size,
    )
    compiler = _Compiler(
        tape,
        weights,
        add_caches(tape, program, kv, groups),
        add_states(tape, program, kv, groups),
        set_eviction(tape, program, groups, limits),
    )
    queries: Type = "f32" if kv.type == "f32" else "bf16"
    calls = place(program, lambda weight: _encoding(weights, weight), queries)
    for call in calls:
        _KINDS[call.op.kind](compiler, call)
    stream = next(call.inputs[0] for call in calls if call.op is program.final_norm)
    return tape, compiler.buffer(stream)


def _encoding(weights: Weights, weight: WeightRef) -> Encoding:
    matrix = _packed(weights, weight)
    return cast(Type, matrix.input), matrix.span if matrix.input == "i8" else 0, matrix.ordered


def _packed(weights: Weights, weight: WeightRef) -> PackedMatrix:
    matrix = weights.matrices[weight.name].weight
    assert isinstance(matrix, PackedMatrix)
    return matrix


@dataclass(slots=True)
class _Compiler:
    """Appends one native call for each op. Memory is allocated where it is first used, and stays zero in its padding,
    as every use writes the same columns."""

    tape: Tape
    weights: Weights
    caches: Mapping[int, int]  # by layer
    states: Mapping[int, tuple[int, ...]]  # by layer
    evicting: frozenset[int] = frozenset()  # layers
    numbers: dict[Place, int] = field(default_factory=dict)

    def buffer(self, place: Place) -> int:
        """The number of its memory; a rotation has one as soon as the tape computes it. Routings have their own."""
        if place not in self.numbers:
            if place.kind == "queries":
                self.numbers[place] = self.tape.add_queries(place.type, place.columns)
            elif place.kind == "routing":
                self.numbers[place] = self.tape.add_routing(place.columns, place.each)
            else:
                self.numbers[place] = self.tape.add_rows(place.type, place.columns, place.group, place.each)
        return self.numbers[place]

    def embed(self, call: Call) -> None:
        op: Op[Embed] = call.op
        table = self.weights.tables[op.weights[0].name]
        out, positions = self.buffer(call.outputs[0]), op.attributes.positions
        self.tape.embed(table, out, scale=op.attributes.scale, positions=positions, name=op.name)

    def rotations(self, call: Call) -> None:
        """Rotations have numbers of their own."""
        op: Op[Rotations] = call.op
        frequencies, factor = inverse_frequencies(op.attributes.rope)
        self.numbers[call.outputs[0]] = self.tape.rotations(
            np.array(frequencies, dtype=np.float64), factor, limit=op.attributes.limit
        )

    def norm(self, call: Call) -> None:
        self._encode(call, **self._norm(call.op.attributes, call.op.weights))

    def norm_columns(self, call: Call) -> None:
        op: Op[Norm] = call.op
        assert op.attributes.columns is not None
        first, count = op.attributes.columns
        self.tape.norm_columns(
            self.buffer(call.outputs[0]), first, count,
            **self._norm(op.attributes, op.weights), name=op.name, layer=_layer(op),
        )  # fmt: skip

    def add(self, call: Call) -> None:
        op: Op[Add] = call.op
        norm, decays = op.attributes.norm, op.attributes.decays
        branch, out = call.inputs[0], call.outputs[0]
        normed = {} if norm is None else self._norm(norm, op.weights[:-1] if decays else op.weights)
        self.tape.add(
            self.buffer(branch), self.buffer(out), out.columns,
            scale=op.attributes.scale, **normed, norm_cols=0 if norm is None else norm.each or 0,
            decay=self.weights.vectors[op.weights[-1].name] if decays else None,
            scope=_scope(op), name=op.name, layer=_layer(op),
        )  # fmt: skip

    def _norm(self, norm: Norm, weights: Sequence[WeightRef]) -> dict[str, Any]:
        """A norm as the tape takes it."""
        vectors = [self.weights.vectors[weight.name] for weight in weights]
        return {"norm": vectors, "centred": norm.kind == "layer", "eps": norm.eps}

    def encode(self, call: Call) -> None:
        self._encode(call)

    def activate(self, call: Call) -> None:
        op: Op[Activate] = call.op
        times = self.buffer(call.inputs[1]) if len(call.inputs) > 1 else None
        column = op.attributes.column
        self._encode(call, gate=op.attributes.activation, times=times, times_column=column)

    def gather(self, call: Call) -> None:
        self._encode(call, scope="gathered")

    def _encode(self, call: Call, **options: Any) -> None:
        source, (out,) = call.inputs[0], call.outputs
        reader = None if call.op.reader is None else _packed(self.weights, call.op.reader)
        self.tape.encode(
            self.buffer(source),
            self.buffer(out),
            out.columns,
            **{"scope": _scope(call.op), **options},
            name=call.op.name,
            layer=_layer(call.op),
            reader=reader if reader is not None and reader.ordered else None,
        )

    def linear(self, call: Call) -> None:
        op: Op[Linear] = call.op
        epilogue = op.attributes.epilogue
        self.tape.linear(
            self.buffer(call.inputs[0]),
            _packed(self.weights, op.weights[0]),
            self.buffer(call.outputs[0]),
            epilogue="store" if epilogue in ("none", "append") else epilogue,
            gate=op.attributes.activation or "none",
            gates=self.buffer(call.inputs[1]) if epilogue == "multiply" else None,
            column=op.attributes.column,
            scope=_scope(op),
            name=op.name,
            layer=_layer(op),
        )

    def rope(self, call: Call) -> None:
        op: Op[Heads] = call.op
        qkv, *rotations = (self.buffer(place) for place in call.inputs)
        q, *q_sink = (self.buffer(place) for place in call.outputs)
        norms = [self.weights.vectors[weight.name] for weight in op.weights]
        warmth = op.attributes.temperature
        assert op.attributes.norm is None or op.attributes.norm.kind == "rms"
        self.tape.rope(
            qkv,
            self.caches[op.attributes.cache],
            q,
            num_heads=op.attributes.num_heads,
            rotated=op.attributes.rotated,
            interleaved=op.attributes.interleaved,
            temperature=None if warmth is None else (warmth.beta, warmth.length, warmth.shift),
            rotation=rotations[0] if rotations else None,
            sink_rotation=rotations[1] if len(rotations) > 1 else None,
            q_sink=q_sink[0] if q_sink else None,
            q_norm=norms[0] if norms else None,
            k_norm=norms[1] if len(norms) > 1 else None,
            normed=op.attributes.norm is not None,
            v_norm=op.attributes.value_norm,
            keys_are_values=op.attributes.keys_are_values,
            writes=op.attributes.writes,
            eps=0.0 if op.attributes.norm is None else op.attributes.norm.eps,
            layer=_layer(op),
        )

    def latent(self, call: Call) -> None:
        op: Op[Latent] = call.op
        query, latent, rotation, _ = (self.buffer(place) for place in call.inputs)
        self.tape.latent(
            query,
            latent,
            self.caches[op.attributes.cache],
            self.buffer(call.outputs[0]),
            num_heads=op.attributes.num_heads,
            key_dim=op.attributes.key_dim,
            interleaved=op.attributes.interleaved,
            rotation=rotation,
            layer=_layer(op),
        )

    def heads_linear(self, call: Call) -> None:
        op: Op[HeadsLinear] = call.op
        self.tape.heads_linear(
            self.buffer(call.inputs[0]),
            _packed(self.weights, op.weights[0]),
            self.buffer(call.outputs[0]),
            inputs=op.attributes.inputs,
            outputs=op.attributes.outputs,
            scope=_scope(op),
            name=op.name,
            layer=_layer(op),
        )

    def attention(self, call: Call) -> None:
        op: Op[Attention] = call.op
        q, *q_sink = (self.buffer(place) for place in call.inputs)
        soft_cap = op.attributes.soft_cap or 0.0
        learned_sinks = self.weights.vectors[op.weights[0].name] if op.weights else None
        self.tape.attention(
            q,
            q_sink[0] if q_sink else None,
            self.caches[op.attributes.cache],
            self.buffer(call.outputs[0]),
            num_heads=op.attributes.num_heads,
            scale=op.attributes.scale,
            window=op.attributes.window or 0,
            chunked=op.attributes.chunked,
            sinks=op.attributes.sinks,
            soft_cap=soft_cap,
            slopes=np.array(op.attributes.slopes, dtype=np.float32) if op.attributes.slopes else None,
            learned_sinks=learned_sinks,
            layer=_layer(op),
        )
        if op.attributes.cache in self.evicting and op.attributes.cache == op.layer:
            self.tape.evict(
                q,
                self.caches[op.attributes.cache],
                num_heads=op.attributes.num_heads,
                scale=op.attributes.scale,
                soft_cap=soft_cap,
                learned_sinks=learned_sinks,
                layer=_layer(op),
            )

    def ungroup(self, call: Call) -> None:
        op: Op[Ungroup] = call.op
        groups, columns = op.attributes.groups, [0] * len(call.outputs)
        parts = []
        for width, output in op.attributes.parts:
            parts.append((width, self.buffer(call.outputs[output]), columns[output]))
            columns[output] += groups * width
        source = self.buffer(call.inputs[0])
        self.tape.ungroup(source, parts, groups=groups, name=op.name, layer=_layer(op))

    def gate(self, call: Call) -> None:
        out, gates = (self.buffer(place) for place in call.inputs)
        columns = call.outputs[0].columns
        self.tape.sigmoid_gate(out, gates, columns, name=call.op.name, layer=_layer(call.op))

    def conv(self, call: Call) -> None:
        op: Op[Conv] = call.op
        spec = op.attributes
        weight, *bias = (self.weights.vectors[one.name] for one in op.weights)
        self.tape.convolution(
            self.buffer(call.inputs[0]),
            self.states[spec.cache][0],
            self.buffer(call.outputs[0]),
            weight=np.ascontiguousarray(weight.reshape(spec.channels, spec.width).T).reshape(-1),
            bias=bias[0] if bias else None,
            channels=spec.channels,
            width=spec.width,
            gated=spec.gated,
            layer=_layer(op),
        )

    def delta(self, call: Call) -> None:
        op: Op[Delta] = call.op
        spec = op.attributes
        qkv, gates, numbers = (self.buffer(place) for place in call.inputs)
        rate, time, norm = (self.weights.vectors[one.name] for one in op.weights)
        self.tape.gated_delta(
            qkv,
            gates,
            numbers,
            self.states[spec.cache][1],
            self.buffer(call.outputs[0]),
            rate=rate,
            time=time,
            norm=norm,
            eps=spec.eps,
            heads=spec.num_heads,
            key_heads=spec.num_key_heads,
            key_dim=spec.key_dim,
            value_dim=spec.value_dim,
            tiled=spec.tiled,
            layer=_layer(op),
        )

    def route(self, call: Call) -> None:
        op: Op[Route] = call.op
        router = op.attributes.router
        vectors = [self.weights.vectors[weight.name] for weight in op.weights]
        self.tape.route(
            self.buffer(call.inputs[0]),
            self.buffer(call.outputs[0]),
            bias=vectors[0] if router.choice_bias else None,
            expert_scale=vectors[-1] if router.expert_scale else None,
            scores=router.scores,
            normalize=router.normalize,
            scale=router.scale,
            groups=router.groups,
            top_groups=router.top_groups,
            group_score=router.group_score,
            shared=op.attributes.shared,
            scope=_scope(op),
            layer=_layer(op),
        )

    def dispatch(self, call: Call) -> None:
        source, routing = (self.buffer(place) for place in call.inputs)
        out = self.buffer(call.outputs[0])
        self.tape.dispatch(source, routing, out, scope=_scope(call.op), layer=_layer(call.op))

    def experts(self, call: Call) -> None:
        op: Op[Experts] = call.op
        source, routing, *gates = (self.buffer(place) for place in call.inputs)
        epilogue = op.attributes.epilogue
        self.tape.experts(
            source,
            _packed(self.weights, op.weights[0]),
            self.buffer(call.outputs[0]),
            routing,
            epilogue="store" if epilogue == "none" else epilogue,
            gate=op.attributes.activation or "none",
            gates=gates[0] if gates else None,
            scaled=op.attributes.scaled,
            scope=_scope(op),
            name=op.name,
            layer=_layer(op),
        )

    def combine(self, call: Call) -> None:
        op: Op[Combine] = call.op
        others = call.inputs[2:-1] if op.attributes.add else call.inputs[2:]
        source, routing = (self.buffer(place) for place in call.inputs[:2])
        out = call.outputs[0]
        self.tape.combine(
            source,
            routing,
            self.buffer(out),
            out.columns,
            shared=self.buffer(others[0]) if others else None,
            gated=op.attributes.gated,
            weighted=op.attributes.weighted,
            added=op.attributes.add,
            scope=_scope(op),
            layer=_layer(op),
        )

    def logits(self, call: Call) -> None:
        op: Op[Head] = call.op
        head = _packed(self.weights, op.weights[0])
        self.tape.logits(
            self.buffer(call.inputs[0]), head, op.attributes.soft_cap or 0.0, op.attributes.scale
        )


_KINDS: Mapping[str, Callable[[_Compiler, Call], None]] = {
    "embed": _Compiler.embed,
    "rotations": _Compiler.rotations,
    "norm": _Compiler.norm,
    "norm_columns": _Compiler.norm_columns,
    "add": _Compiler.add,
    "activate": _Compiler.activate,
    "encode": _Compiler.encode,
    "gather": _Compiler.gather,
    "linear": _Compiler.linear,
    "rope": _Compiler.rope,
    "latent": _Compiler.latent,
    "heads_linear": _Compiler.heads_linear,
    "attention": _Compiler.attention,
    "ungroup": _Compiler.ungroup,
    "gate": _Compiler.gate,
    "conv": _Compiler.conv,
    "delta": _Compiler.delta,
    "route": _Compiler.route,
    "dispatch": _Compiler.dispatch,
    "experts": _Compiler.experts,
    "combine": _Compiler.combine,
    "logits": _Compiler.logits,
}
"""The native call of each kind of op."""


def _scope(op: Op[Any]) -> Literal["tokens", "logits"]:
    """The tape's word for the rows; its "logits" are the selected rows."""
    return "tokens" if op.rows == "tokens" else "logits"


def _layer(op: Op[Any]) -> int:
    return -1 if op.layer is None else op.layer
