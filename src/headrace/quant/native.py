"""Stored codes as the arrays that the native kernels pack. numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.quant.coded import Coded
from headrace.quant.format import WeightFormat

CodeArrays = tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.uint8] | None]
"""Codes [R, C], scales [R, groups] and zeros [R, groups], as `PackedMatrix.from_codes` takes them."""


def native_codes(matrix: Coded, target: WeightFormat) -> CodeArrays:
    """The arrays of a matrix in the format that `code_format.native_format`, or `common_format`, gives."""
    middle, wanted = 1 << (matrix.format.bits - 1), 1 << (target.bits - 1)
    shift = np.uint8(wanted - middle)
    codes = matrix.codes + shift if shift else matrix.codes
    scales, zeros = matrix.scales, matrix.zeros
    rows, columns = codes.shape
    if zeros is not None:
        zeros = zeros + shift
    elif not target.symmetric:
        zeros = np.full(scales.shape, wanted, dtype=np.uint8)
    if matrix.format.rows is None:  # one scale for all rows
        scales = np.repeat(scales, rows, axis=0)
        zeros = None if zeros is None else np.repeat(zeros, rows, axis=0)
    if target.group is not None:
        groups = -(-columns // target.group)
        times = groups if matrix.format.group is None else min(groups, matrix.format.group // target.group)
        scales = np.repeat(scales, times, axis=1)[:, :groups]
        zeros = None if zeros is None else np.repeat(zeros, times, axis=1)[:, :groups]
    return (
        np.ascontiguousarray(codes),
        np.ascontiguousarray(scales, dtype=np.float16),
        None if zeros is None else np.ascontiguousarray(zeros),
    )
