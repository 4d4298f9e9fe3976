"""Saves a model's weights in packed form, and maps them again. Imported only where the native kernels are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace._native import PackedMatrix
from headrace.errors import CheckpointError
from headrace.models.floats import ARRAY_TYPES
from headrace.models.packed.data import PackedData, PackedWriter
from headrace.models.packed.header import MatrixForm, PackedHeader
from headrace.models.packed.match import check_formats, check_program
from headrace.models.packing import map_matrix
from headrace.models.weights import Array, Maker, Progress, Projection, Weights, make_weights
from headrace.program.records import Program, WeightRef
from headrace.quant.format import WeightFormat

_DTYPES = {np.dtype(array): name for name, array in ARRAY_TYPES.items()}


def map_packed(
    header: PackedHeader,
    program: Program,
    format_of: Callable[[str], WeightFormat],
    table_dtype: str,
    *,
    prefetch: bool = True,
    progress: Progress | None = None,
) -> Weights:
    """The weights of a packed folder, in place: nothing is copied, and pages are read when they are first used.

    format_of: the format of each weight that the plan counts with; table_dtype: of embeddings. prefetch: ask the
    system to read all pages now, in the background. Raises CheckpointError where the folder holds something else.
    """
    check_program(header, program)
    check_formats(header, program, format_of, table_dtype)
    data = PackedData(header)
    weights = make_weights(program.weights, _Mapped(header, data, len(program.weights), progress))
    if prefetch:
        data.prefetch()
    return weights


def save_packed(
    weights: Iterable[WeightRef], maker: Maker, writer: PackedWriter, format_of: Callable[[str], WeightFormat]
) -> None:
    """Make every weight and write it, one after the other: memory is needed for one at a time."""
    make_weights(weights, _Saved(maker, writer, format_of))


class _Mapped:
    """Views of the mapped file; a `weights.Maker`."""

    def __init__(self, header: PackedHeader, data: PackedData, total: int, progress: Progress | None) -> None:
        self._header, self._data = header, data
        self._done, self._total = 0, total
        self._progress = progress

    def table(self, weight: WeightRef) -> Array:
        if self._header.formats.keeps_table(weight.name):
            return self.matrix(weight).weight
        return self._array(weight)

    def vector(self, weight: WeightRef) -> NDArray[Any]:
        return self._array(weight)

    def matrix(self, weight: WeightRef) -> Projection:
        entry = self._header.matrices[weight.name]
        form = entry.matrix
        assert form is not None  # `check_program` has looked
        try:
            matrix = map_matrix(
                self._data.piece(entry), form.format, form.rows, form.columns, gate=form.gate, bias=form.bias,
                experts=form.experts,
            )  # fmt: skip
        except (ValueError, TypeError) as error:  # TypeError: a number beyond 32 bits
            raise CheckpointError(
                f"weight {weight.name} in {self._header.folder}: {str(error).splitlines()[0]:.200}"
            ) from error
        self._finish()
        return Projection(matrix, format=form.format.name)

    def tied(self, weight: WeightRef) -> tuple[Array, Projection]:
        head = self.matrix(weight)
        if weight.name in self._header.arrays:
            return self._data.array(self._header.arrays[weight.name]), head
        return head.weight, head

    def _array(self, weight: WeightRef) -> NDArray[Any]:
        found = self._data.array(self._header.arrays[weight.name])
        self._finish()
        return found

    def _finish(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


class _Saved:
    """Writes what another maker makes, and keeps none of it; a `weights.Maker`."""

    def __init__(self, maker: Maker, writer: PackedWriter, format_of: Callable[[str], WeightFormat]) -> None:
        self._maker, self._writer, self._format_of = maker, writer, format_of

    def table(self, weight: WeightRef) -> None:
        table = self._maker.table(weight)
        if isinstance(table, PackedMatrix):
            self._write_matrix(weight, Projection(table))
        else:
            self._write_array(weight, table)

    def vector(self, weight: WeightRef) -> None:
        self._write_array(weight, self._maker.vector(weight))

    def matrix(self, weight: WeightRef) -> Projection:
        self._write_matrix(weight, self._maker.matrix(weight))
        return _NOTHING

    def tied(self, weight: WeightRef) -> tuple[None, Projection]:
        table, head = self._maker.tied(weight)
        if table is not head.weight:
            self._write_array(weight, table)
        self._write_matrix(weight, head)
        return None, _NOTHING

    def _write_array(self, weight: WeightRef, values: NDArray[Any]) -> None:
        self._writer.array(weight.name, _DTYPES[values.dtype], np.ascontiguousarray(values))

    def _write_matrix(self, weight: WeightRef, made: Projection) -> None:
        matrix = made.weight
        assert isinstance(matrix, PackedMatrix)
        form = MatrixForm(
            self._format_of(weight.name),
            rows=matrix.rows,
            columns=matrix.cols,
            gate=weight.gated,
            bias=bool(weight.biases),
            experts=weight.experts,
        )
        self._writer.matrix(weight.name, form, matrix.pieces)


_NOTHING = Projection(None)
"""In place of what was written and let go."""
