"""Stored codes as the arrays that the native kernels pack. numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CheckpointError
from headrace.quant.coded import TABLES, Coded
from headrace.quant.format import WeightFormat

CodeArrays = tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.uint8] | None]
"""Codes [R, C], scales [R, groups] and zeros [R, groups], as `PackedMatrix.from_codes` takes them."""


def native_codes(matrix: Coded, target: WeightFormat) -> CodeArrays:
    """The arrays of a matrix in the format that `code_format.native_format` gives."""
    codes, zeros = matrix.codes, matrix.zeros
    if matrix.format.table == "integer":
        shift = np.uint8((1 << (target.bits - 1)) - (1 << (matrix.format.bits - 1)))
        codes = codes + shift if shift else codes
        zeros = zeros + shift if shift and zeros is not None else zeros
    return (
        np.ascontiguousarray(codes),
        _by_row(matrix.scales, matrix),
        None if zeros is None else _by_row(zeros, matrix),
    )


def native_table(target: WeightFormat) -> tuple[NDArray[Any] | None, float]:
    """(what the codes of a format with a table stand for, the factor of every scale).

    int8 activations multiply with whole numbers: those of iq4, and those of e2m1 doubled; bf16 ones with bfloat16.
    """
    if target.table is None:
        return None, 1.0
    table = TABLES[target.table]
    if target.activations == "int8":
        return (table.astype(np.int8), 1.0) if target.table == "iq4" else ((2 * table).astype(np.int8), 0.5)
    bits = table.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16), 1.0


def common_order(parts: Sequence[Coded]) -> NDArray[np.int32] | None:
    """The input feature of each column, which all parts of one product share, or None."""
    orders = [part.permutation for part in parts]
    first = orders[0]
    if first is None and all(order is None for order in orders):
        return None
    if first is None or not all(order is not None and np.array_equal(first, order) for order in orders):
        raise CheckpointError("the parts of one product have their input features in different orders")
    return first.astype(np.int32)


def _by_row(blocks: NDArray[Any], matrix: Coded) -> NDArray[Any]:
    """Numbers of a matrix's blocks as numbers of each row's groups [R, groups]."""
    rows = len(matrix.codes)
    if matrix.format.rows != 1:
        blocks = np.repeat(blocks, matrix.format.rows or rows, axis=0)[:rows]
    return np.ascontiguousarray(blocks)
