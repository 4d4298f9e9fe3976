"""The quantised matrices of a checkpoint: found by name, checked against the program, decoded one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CheckpointError
from headrace.models.quantized.layout import Layout, Matrix, Method, Stored
from headrace.models.safetensors_reader import WEIGHT_DTYPES, Checkpoint
from headrace.models.weight_files import TensorEntry
from headrace.program.records import Program, WeightRef
from headrace.quant.code_format import CodeFormat
from headrace.quant.coded import Coded, dequantize


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A `weight_files.CodedMatrix` of safetensors files, in the layout of a method.

    order: the stored rows in the program's order, None where they lie so.
    """

    layout: Layout
    matrix: Matrix
    order: Sequence[int] | None = None

    @property
    def format(self) -> CodeFormat:
        return self.layout.format(self.matrix)

    @property
    def tensors(self) -> tuple[TensorEntry, ...]:
        return tuple(self.matrix.entries.values())

    def decode(self) -> Coded:
        stored = self.layout.decode(self.matrix)
        return stored if self.order is None else stored.rows(self.order)

    def floats(self) -> NDArray[np.float32]:
        return dequantize(self.decode())

    def blocks(self) -> None:
        return None  # no method of safetensors files stores them


CodedMatrices = Mapping[str, LaidOut]
"""By the name that the matrix would have as floats, as in `WeightRef.parts`."""


def find_coded(checkpoint: Checkpoint, method: Method | None, program: Program) -> CodedMatrices:
    """The matrices of a program that the checkpoint stores as codes.

    Files decide: a module that the config lists as quantised, but whose weight is stored as floats, is taken as it is.
    Raises CheckpointError, naming the tensor, for one that is missing, misshapen or of another type.
    """
    found: dict[str, LaidOut] = {}
    if method is None:
        return found
    matrices = (weight for weight in program.weights if weight.kind == "matrix")
    for name, rows, columns in (one for weight in matrices for one in _sizes(weight)):
        module = name.removesuffix(".weight")
        layout = method.layout(module)
        if layout is not None and not _is_plain(checkpoint, name, module + layout.codes):
            matrix = _check(checkpoint, method, layout, module, rows, columns)
            found[name] = LaidOut(layout, matrix, _order(checkpoint, layout, matrix, name))
    return found


def _order(checkpoint: Checkpoint, layout: Layout, matrix: Matrix, name: str) -> Sequence[int] | None:
    order = checkpoint.row_order(name, matrix.rows)
    if order is not None and layout.format(matrix).rows not in (1, None):
        raise CheckpointError(
            f"{matrix.module} has its rows by head, and scales for blocks of {layout.format(matrix).rows} rows, which "
            "do not stay together in the order of the model; use scales a row or a group"
        )
    return order


def _sizes(weight: WeightRef) -> Iterator[tuple[str, int, int]]:
    """(name, rows, columns) of each stored matrix: one for all matrices of heads, one for each expert."""
    if weight.in_heads is not None:
        ((name, (rows, columns)),) = weight.tensors()
        yield name, rows, columns
        return
    for one in weight.each():
        yield from ((name, rows, one.columns) for name, rows in one.parts)


def ignored_tensors(checkpoint: Checkpoint, method: Method | None, coded: CodedMatrices) -> Iterator[str]:
    """Tensors that hold no weight: the method's own, and biases of zeros that some exporters add."""
    if method is None:
        return
    biases = {f"{one.matrix.module}.bias" for one in coded.values()}
    for name in checkpoint.names():
        if name.endswith(method.ignored or ()) or (name in biases and not checkpoint.raw(name).any()):
            yield name


def _is_plain(checkpoint: Checkpoint, name: str, codes: str) -> bool:
    """The weight is stored as floats, and there are no codes."""
    weight, main = checkpoint.entry(name), checkpoint.entry(codes)
    if weight is None or weight.dtype not in WEIGHT_DTYPES:
        return False
    return main is None or codes == name


def _check(
    checkpoint: Checkpoint, method: Method, layout: Layout, module: str, rows: int, columns: int
) -> Matrix:
    try:
        parts = layout.stored(rows, columns)
    except ValueError as error:
        raise CheckpointError(f"{module} cannot be stored in the layout of {method.name}: {error}") from None
    entries: dict[str, TensorEntry] = {}
    for part in parts:
        entry = checkpoint.code_entry(module + part.suffix)
        if entry is not None:
            entries[part.suffix] = _checked(entry, part)
        elif part.required:
            raise CheckpointError(
                f"the checkpoint in {checkpoint.folder} lacks tensor {module}{part.suffix}, which {method.name} needs"
            )
    return Matrix(module, rows, columns, entries, lambda suffix: checkpoint.codes(module + suffix))


def _checked(entry: TensorEntry, part: Stored) -> TensorEntry:
    if entry.dtype not in part.dtypes:
        raise CheckpointError(
            f"tensor {entry.name} is stored as {entry.dtype}, not as one of {', '.join(part.dtypes)}"
        )
    if part.shapes is not None and entry.shape not in part.shapes:
        expected = " or ".join(dict.fromkeys(str(list(shape)) for shape in part.shapes))
        raise CheckpointError(
            f"tensor {entry.name} has shape {list(entry.shape)}, but the sizes of the model and the settings of its "
            f"quantisation ask for {expected}"
        )
    return entry
