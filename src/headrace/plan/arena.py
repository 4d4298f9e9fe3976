"""Memory of the native path's tape, from the same places that runner.tape allocates.

The arena is allocated for the largest step, and its pages become resident when a step first writes them.
"""

from __future__ import annotations

import functools

from headrace.plan.formats import CODED, MemoryFormat
from headrace.program.placement import Call, Encoding, Place, Type, place
from headrace.program.records import Program, WeightRef
from headrace.quant.format import INPUT_ALIGN, PAGE, WeightFormats

_BYTES: dict[Type, int] = {"f32": 4, "bf16": 2, "i8": 1}
_TYPES: dict[str, Type] = {"f32": "f32", "bf16": "bf16", "int8": "i8"}  # by type of activations
_CACHE_LINE = 64

# Attention's scratch memory for each thread, see csrc/isa/attention_plan.h: the most rows of a tile on any instruction
# set, columns of a span, partial results kept at once, and the least room for them in floats.
_TILE_ROWS, _SPAN, _PARTIALS, _POOL_FLOATS = 64, 256, 8, 1 << 18
_MASKED = 32  # columns of values that are copied at once
_PANEL = 16  # bytes beside a row of rounded queries


def arena_bytes(program: Program, tokens: int, seqs: int, memory: MemoryFormat) -> dict[str, int]:
    """Bytes of hidden, attention, feed-forward and logits for steps of up to `tokens` tokens of `seqs` sequences."""
    assert memory.weights is not None  # the native path has packed weights
    sizes: dict[str, int] = {}
    for one in _places(program, memory.weights, memory.kv.dtype):
        sizes[one.part] = sizes.get(one.part, 0) + _place_bytes(one, tokens)
    heads = {(op.attributes.head_dim, op.attributes.value_dim) for op in program.of_kind("attention")}
    sizes["attention"] += sum(_pages(_scratch(key, value, memory, seqs)) for key, value in heads)
    return sizes


@functools.lru_cache(maxsize=8)
def _places(program: Program, weights: WeightFormats, kv_dtype: str) -> tuple[Place, ...]:
    """All memory of a step, each once."""
    return tuple(dict.fromkeys(out for call in calls(program, weights, kv_dtype) for out in call.outputs))


def calls(program: Program, weights: WeightFormats, kv_dtype: str) -> tuple[Call, ...]:
    """The calls of the tape, from the formats alone."""

    def read_as(weight: WeightRef) -> Encoding:
        one = weights.of(weight.name)
        type = _TYPES[one.activations]
        span = (one.span or _round(weight.columns, INPUT_ALIGN)) if type == "i8" else 0
        return type, span, one.ordered

    return place(program, read_as, "f32" if kv_dtype == "float32" else "bf16")


def _place_bytes(one: Place, tokens: int) -> int:
    """Each array of it in whole pages."""
    if (
        one.kind == "routing"
    ):  # each expert and its weight, both ways, and gates; then the experts' first rows
        pairs, experts = tokens * one.each, _pages(4 * (one.columns + 1))
        return 4 * _pages(4 * pairs) + _pages(4 * tokens) + 2 * experts
    tokens *= one.each
    if one.kind == "rotation":  # cosines, and sines
        return 2 * _pages(tokens * one.columns // 2 * _BYTES[one.type])
    if one.kind != "rows":
        return _pages(tokens * one.columns * _BYTES[one.type])
    padded = _round(one.columns, INPUT_ALIGN)
    stride = _round(padded * _BYTES[one.type], _CACHE_LINE)
    size = _pages(tokens * (stride if stride % PAGE else stride + _CACHE_LINE))
    if one.type == "i8":  # a scale and a sum a group
        size += 2 * _pages(tokens * -(-padded // one.group) * 4)
    return size


def _scratch(head_dim: int, value_dim: int, memory: MemoryFormat, seqs: int) -> int:
    """A bound: instruction sets cut attention into tiles of different sizes."""
    partial = _round((2 * _round(_TILE_ROWS, 16) + _TILE_ROWS * value_dim) * 4, _CACHE_LINE)
    columns = _SPAN if memory.kv.dtype in CODED or value_dim < head_dim else _MASKED
    values = (4 if memory.kv.dtype == "float32" else 2) * columns * head_dim
    if memory.kv.dtype == "int4":
        values += 4 * _SPAN  # scales
    if memory.kv.dtype == "int8" and value_dim == head_dim:  # rounded queries, and a second product on tiles
        values += _TILE_ROWS * (2 * (head_dim + _PANEL) + 4 * head_dim)
    results = partial * _PARTIALS
    work = 4 * _TILE_ROWS * (_SPAN + 16) + 2 * partial + values
    tables = 4 * _CACHE_LINE + 32 * _PARTIALS * memory.threads + 8 * (seqs + 1)
    return _round(tables, _CACHE_LINE) + memory.threads * (results + max(4 * _POOL_FLOATS, results) + work)


def _pages(size: int) -> int:
    return _round(size, PAGE)


def _round(count: int, step: int) -> int:
    return -(-count // step) * step
