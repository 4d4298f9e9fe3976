"""Which memory the native path's tape needs for a program, and which ops become calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from headrace.program.records import Buffer, Op, Part, Program, WeightRef

Type = Literal["f32", "bf16", "i8"]

Encoding = tuple[Type, int, bool]
"""How a matrix reads its input: the type; for i8 the features that share a scale, else 0; whether in its own order."""


@dataclass(frozen=True, slots=True)
class Place:
    """Memory of one buffer, for as many rows as a step has tokens, or `each` times that. Equal places are the same
    memory."""

    name: str
    kind: Literal["rows", "queries", "rotation", "routing", "logits"]
    type: Type
    columns: int
    group: int
    part: Part
    each: int = 1


@dataclass(frozen=True, slots=True)
class Call:
    """An op with the memory that it works on."""

    op: Op[Any]
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]


def place(program: Program, encoding: Callable[[WeightRef], Encoding], queries: Type) -> tuple[Call, ...]:
    """The calls of a step. `encoding` of each matrix; `queries`: the type that attention multiplies in.

    An op that encodes what already has the right type makes no call, nor does one whose result is there already,
    because a matrix before it has read it in the same encoding.
    """
    places: dict[Buffer, Place] = {}
    calls = []
    normed: dict[
        Place, tuple[Buffer, tuple[WeightRef, ...]]
    ] = {}  # what a place holds: of what, in which norm
    for op in program.ops:
        inputs = tuple(places[buffer] for buffer in op.inputs)
        read: Encoding = ("f32", 0, False) if op.reader is None else encoding(op.reader)
        outputs = tuple(_place(buffer, read, queries) for buffer in op.outputs)
        if op.kind == "encode" and inputs[0].type == outputs[0].type:
            places[op.outputs[0]] = inputs[0]
            continue
        places.update(zip(op.outputs, outputs, strict=True))
        is_norm = op.kind in ("norm", "encode") and not read[2]  # two matrices may have different orders
        if is_norm and normed.get(outputs[0]) == (op.inputs[0], op.weights):
            continue
        for place_, (source, _) in list(normed.items()):
            if place_ in outputs or source in op.outputs:
                del normed[place_]
        if is_norm:
            normed[outputs[0]] = (op.inputs[0], op.weights)
        calls.append(Call(op, inputs, outputs))
    return tuple(calls)


def _place(buffer: Buffer, read: Encoding, queries: Type) -> Place:
    type, group, ordered = read
    kind: Literal["rows", "queries", "rotation", "routing", "logits"] = "rows"
    stored: Type = "f32"
    features = 0
    if buffer.form == "encoded":
        stored, features = type, group
    elif buffer.form == "direct":
        stored = "f32" if type == "i8" or ordered else type
    elif buffer.form == "queries":
        kind, stored = "queries", queries
    elif buffer.form != "float":
        kind = buffer.form
    return Place(buffer.name, kind, stored, buffer.columns, features, buffer.part, buffer.each)
