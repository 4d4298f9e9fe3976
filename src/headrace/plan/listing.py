"""A program as rows of text, for `headrace inspect --program`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.plan.formats import MemoryFormat
from headrace.plan.units import format_bytes, format_count
from headrace.plan.weights import matrix_bytes, table_bytes
from headrace.program.records import Buffer, Op, Program, WeightRef
from headrace.program.work import operations_per_pair, operations_per_row

COLUMNS = (
    "op",
    "name",
    "layer",
    "rows",
    "inputs",
    "outputs",
    "weights",
    "tensors",
    "FLOPs a row",
    "bytes a step",
)


def program_rows(program: Program, memory: MemoryFormat, block_size: int) -> list[tuple[str, ...]]:
    """A row under `COLUMNS` for each op, in order.

    Bytes a step: what is read of the op's weights, as they lie in memory. Attention reads and multiplies what is in the
    KV cache: FLOPs are for a query and a key in its sight, bytes for a position with its scales.
    """
    return [COLUMNS, *(_row(op, program, memory, block_size) for op in program.ops)]


def _row(op: Op[Any], program: Program, memory: MemoryFormat, block_size: int) -> tuple[str, ...]:
    flops, read = "", ""
    if (per_row := operations_per_row(op)) > 0:
        flops = format_count(per_row)
    if op.weights:
        read = format_bytes(sum(_read_bytes(op, weight, memory) for weight in op.weights))
        read += " a row" if op.kind == "embed" else ""
    if (per_pair := operations_per_pair(op)) > 0:
        flops = f"{format_count(per_pair)} a key"
        layout = next(layout for layout in program.kv if op.attributes.cache in layout.layers)
        read = f"{format_bytes(memory.kv.token_bytes(layout, block_size) // len(layout.layers))} a key"
    return (
        op.kind,
        op.name,
        "" if op.layer is None else str(op.layer),
        op.rows,
        _buffers(op.inputs),
        _buffers(op.outputs),
        ", ".join(f"{weight.name} {_shape(weight)}" for weight in op.weights),
        ", ".join(name for weight in op.weights for name, _ in weight.tensors()),
        flops,
        read,
    )


def _read_bytes(op: Op[Any], weight: WeightRef, memory: MemoryFormat) -> int:
    """Of one step; of one row for a lookup."""
    return table_bytes(weight, memory) // weight.rows if op.kind == "embed" else matrix_bytes(weight, memory)


def _buffers(buffers: Sequence[Buffer]) -> str:
    return ", ".join(f"{buffer.name}[{buffer.columns}]" for buffer in buffers)


def _shape(weight: WeightRef) -> str:
    experts = "" if weight.experts is None else f"{weight.experts}x"
    bias = " + bias" if weight.biases else ""
    return f"{experts}{'x'.join(str(size) for size in weight.shape)}{bias}"
