"""Exact parameter counts of a model, by part, and the bytes that they take."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.plan.formats import MemoryFormat
from headrace.plan.units import format_count
from headrace.program.records import Part, Program, WeightRef
from headrace.quant.format import WeightFormats

_NORM_BYTES = 4  # beside packed matrices norms are float32


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Parameters of one part of the model, all layers together."""

    name: str
    parameters: int
    how: str


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Memory of one part of the model."""

    name: str
    bytes: int
    how: str


def weight_parts(program: Program) -> tuple[WeightPart, ...]:
    """Embeddings, attention, feed-forward, norms, head. A tied head counts with the embeddings."""
    layers = program.num_layers
    matrix = f"{format_count(program.vocab_size)} x {format_count(program.hidden_size)}"
    others = [
        f" and {format_count(weight.rows)} x {format_count(weight.columns)}"
        for weight in program.weights
        if weight.kind == "table" and weight.name != "embed"
    ]
    experts = max((one.experts or 0 for one in program.weights if one.part == "feed-forward"), default=0)
    of_experts = f" and their {experts} experts" if experts else ""
    how: dict[Part, str] = {
        "embeddings": matrix + "".join(others),
        "attention": f"q, k, v and output projections of {layers} layers",
        "feed-forward": f"gate, up and down projections of {layers} layers{of_experts}",
        "norms": f"{layers} layers and the final norm",
        "head": matrix if _tied(program) is None else "shares the embeddings",
    }
    counts = dict.fromkeys(how, 0)
    for weight in program.weights:
        counts[weight.part] += weight.elements
    return tuple(WeightPart(name, counts[name], text) for name, text in how.items())


def parameter_count(program: Program) -> int:
    """Parameters of the model, each tied one once."""
    return sum(weight.elements for weight in program.weights)


def weight_bytes(program: Program, memory: MemoryFormat) -> tuple[WeightBytes, ...]:
    """The parts of `weight_parts` with the bytes that they take in `memory`."""
    sizes: dict[str, int] = {}
    for weight in program.weights:
        for name, size in held_bytes(weight, memory).items():
            sizes[name] = sizes.get(name, 0) + size
    return tuple(
        WeightBytes(part.name, sizes.get(part.name, 0), _how(program, part, memory))
        for part in weight_parts(program)
    )


def total_weight_bytes(program: Program, memory: MemoryFormat) -> int:
    """Bytes of all weights."""
    return sum(part.bytes for part in weight_bytes(program, memory))


def held_bytes(weight: WeightRef, memory: MemoryFormat) -> dict[Part, int]:
    """Bytes of one weight, by part: a tied weight that is quantised for the head is held twice."""
    if weight.kind == "tied" and _is_held_twice(weight, memory.weights):
        return {"embeddings": table_bytes(weight, memory), "head": matrix_bytes(weight, memory)}
    return {weight.part: (table_bytes if weight.kind == "table" else matrix_bytes)(weight, memory)}


def _is_held_twice(tied: WeightRef, formats: WeightFormats | None) -> bool:
    """The head is quantised, and the table is not."""
    return formats is not None and formats.of(tied.name).quantized and not formats.keeps_table(tied.name)


def table_bytes(weight: WeightRef, memory: MemoryFormat) -> int:
    """Of a weight that is looked up by row."""
    if memory.weights is not None and memory.weights.keeps_table(weight.name):
        return matrix_bytes(weight, memory)
    return weight.elements * memory.table_bytes


def matrix_bytes(weight: WeightRef, memory: MemoryFormat) -> int:
    """Of a weight that multiplies, or scales."""
    if memory.weights is None:
        return weight.elements * memory.element_bytes
    if weight.kind == "vector":
        return weight.elements * _NORM_BYTES
    packed = memory.weights.of(weight.name)
    return packed.packed_bytes(
        weight.rows, weight.columns, gated=weight.gated, bias=bool(weight.biases), experts=weight.experts
    )


def _how(program: Program, part: WeightPart, memory: MemoryFormat) -> str:
    """How the bytes of a part come about."""
    formats, tied = memory.weights, _tied(program)
    rounded = tied is not None and _is_held_twice(tied, formats)
    if formats is not None and rounded and tied is not None and part.name == "head":
        return f"{format_count(tied.elements)} in {formats.of(tied.name).name}: the embeddings once more, in fewer bits"
    if not part.parameters:
        return part.how
    count = format_count(part.parameters)
    if formats is None:
        return f"{count} x {memory.element_bytes} B: {part.how}"
    if part.name == "norms":
        return f"{count} x {_NORM_BYTES} B: {part.how}"
    table = next(weight.name for weight in program.weights if weight.kind in ("table", "tied"))
    if part.name == "embeddings" and (tied is None or rounded) and not formats.keeps_table(table):
        return f"{count} x {memory.table_bytes} B: {part.how}"
    names = [
        weight.name for weight in program.weights if weight.part == part.name and weight.kind != "vector"
    ]
    used = dict.fromkeys(formats.of(name).name for name in names)
    sources = dict.fromkeys(how for name, how in formats.decoded if name in names)
    decoded = (
        f"; decoded from {', '.join(sources)}, which no kernel for these activations reads" if sources else ""
    )
    return f"{count} in {', '.join(used)}: {part.how}{decoded}"


def _tied(program: Program) -> WeightRef | None:
    return next((weight for weight in program.weights if weight.kind == "tied"), None)
