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
    """The arrays of a matrix in the format that `code_format.native_format`, or `common_format`, gives."""
    codes, scales, zeros = matrix.codes, matrix.scales, matrix.zeros
    if target.scale == "f32" and matrix.format.scale != "f32":
        scales = matrix.float_scales()
    if matrix.format.table == "integer":
        middle, wanted = 1 << (matrix.format.bits - 1), 1 << (target.bits - 1)
        shift = np.uint8(wanted - middle)
        codes = codes + shift if shift else codes
        if zeros is not None:
            zeros = zeros + shift
        elif not target.symmetric:
            zeros = np.full(scales.shape, wanted, dtype=np.uint8)
    columns = codes.shape[1]
    scales = _for_native(scales, matrix, target, columns)
    return (
        np.ascontiguousarray(codes),
        scales,
        None if zeros is None else _for_native(zeros, matrix, target, columns),
    )


def native_table(target: WeightFormat) -> tuple[NDArray[Any] | None, float]:
    """(what the codes of a format with a table stand for, the factor of every scale).

    int8 activations multiply with whole numbers, which are twice those of e2m1; bf16 ones with bfloat16.
    """
    if target.table is None:
        return None, 1.0
    table = TABLES[target.table]
    if target.activations == "int8":
        return (2 * table).astype(np.int8), 0.5
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


def _for_native(blocks: NDArray[Any], matrix: Coded, target: WeightFormat, columns: int) -> NDArray[Any]:
    """Numbers of a matrix's blocks as numbers of each row's groups [R, groups]."""
    rows = len(matrix.codes)
    if matrix.format.rows != 1:
        blocks = np.repeat(blocks, matrix.format.rows or rows, axis=0)[:rows]
    if target.group is not None:
        groups = -(-columns // target.group)
        times = groups if matrix.format.group is None else min(groups, matrix.format.group // target.group)
        blocks = np.repeat(blocks, times, axis=1)[:, :groups]
    return np.ascontiguousarray(blocks)
