"""Weights as codes, the way checkpoints store them, and the specification of what they stand for.

Every method of quantising weights ends in a `Coded`: a code a weight, and scales (and zeros) for blocks of weights.
`dequantize` says what it means; kernels are tested against it. numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.quant.code_format import CodeFormat
from headrace.quant.format import Scale, Table

CHUNK = 1 << 20
"""Weights decoded at once: their temporary arrays stay in the cache."""

SCALE_TYPES: Mapping[Scale, Any] = {
    "f16": np.float16, "f32": np.float32, "bf16": np.uint16, "e8m0": np.uint8, "super": np.float32
}  # fmt: skip
"""Arrays of scales; bfloat16 as its bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A matrix [R, C] of weights: value(code) * scale, where value subtracts the zero.

    codes: uint8 [R, C]; integers without zeros have theirs at 2 ** (bits - 1).
    scales: [ceil(R / rows), ceil(C / group)] of the type in SCALE_TYPES; those of "super" are the products.
    zeros: uint8 codes or float32 minima in the shape of `scales`; a weight is scale * code - minimum. None: there
    are none.
    permutation: int64 [C] or None: column i of `codes` belongs to input feature permutation[i].
    """

    format: CodeFormat
    codes: NDArray[np.uint8]
    scales: NDArray[Any]
    zeros: NDArray[Any] | None = None
    permutation: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        rows, columns = self.codes.shape
        blocks = (
            -(-rows // (self.format.rows or max(1, rows))),
            -(-columns // (self.format.group or max(1, columns))),
        )
        assert self.codes.dtype == np.uint8 and self.scales.shape == blocks
        assert (self.zeros is None) == (self.format.zero == "none")
        assert self.zeros is None or self.zeros.shape == blocks
        assert (self.permutation is None) == (self.format.order == 0)

    def rows(self, order: Sequence[int]) -> Coded:
        """The same rows in another order. Their scales must not be those of blocks of several rows."""
        assert self.format.rows in (1, None)
        each = self.format.rows == 1
        return replace(
            self,
            codes=np.ascontiguousarray(self.codes[order]),
            scales=self.scales[order] if each else self.scales,
            zeros=self.zeros[order] if each and self.zeros is not None else self.zeros,
        )

    def float_scales(self) -> NDArray[np.float32]:
        """The scales as numbers, in their shape."""
        scales = self.scales
        if self.format.scale == "bf16":
            scales = (scales.astype(np.uint32) << 16).view(np.float32)
        elif self.format.scale == "e8m0":
            scales = _E8M0[scales]
        numbers: NDArray[np.float32] = scales.astype(np.float32, copy=False)
        return numbers


def dequantize(matrix: Coded) -> NDArray[np.float32]:
    """The weights [R, C], input features in the model's order."""
    rows, columns = matrix.codes.shape
    out = np.empty((rows, columns), dtype=np.float32)
    values = _values(matrix.format)
    scales = matrix.float_scales()
    step = max(1, CHUNK // max(1, columns))
    block = matrix.format.rows or max(1, rows)
    for first in range(0, rows, step):
        part = slice(first, min(first + step, rows))
        number = np.arange(part.start, part.stop) // block  # the row of scales of each row
        decoded = values[matrix.codes[part]]
        scale = _spread(scales[number], matrix.format.group, columns)
        if matrix.format.zero == "integer":
            assert matrix.zeros is not None
            decoded = decoded - _spread(matrix.zeros[number], matrix.format.group, columns)
        with np.errstate(invalid="ignore", over="ignore"):  # scales may be NaN and infinite in a damaged file
            decoded = decoded * scale
            if matrix.format.zero == "minimum":
                assert matrix.zeros is not None
                decoded -= _spread(matrix.zeros[number], matrix.format.group, columns)
        if matrix.permutation is None:
            out[part] = decoded
        else:
            out[part, matrix.permutation] = decoded
    return out


def _spread(blocks: NDArray[Any], group: int | None, columns: int) -> NDArray[Any]:
    """Numbers of blocks [n, B] as numbers of weights [n, columns], or [n, 1] where a row has one block."""
    return blocks if blocks.shape[1] == 1 or group is None else np.repeat(blocks, group, axis=1)[:, :columns]


def _values(format: CodeFormat) -> NDArray[np.float32]:
    """What each code stands for, before its scale: [256], indexable by any byte."""
    if format.table == "integer":
        middle = 1 << (format.bits - 1) if format.zero == "none" else 0
        return np.arange(256, dtype=np.float32) - middle
    table = TABLES[format.table]
    return np.resize(table, 256)  # codes of 4 bits have no others


def _small_floats(exponent_bits: int, mantissa_bits: int) -> NDArray[np.float32]:
    """All floats of that size with a sign bit, subnormals included, as if no code were an infinity or a NaN."""
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    normal = np.ldexp(1.0 + mantissa / (1 << mantissa_bits), exponent - bias)
    subnormal = np.ldexp(mantissa / (1 << mantissa_bits), 1 - bias)
    sign = np.where(codes >> (exponent_bits + mantissa_bits), -1.0, 1.0)
    values: NDArray[np.float32] = (sign * np.where(exponent == 0, subnormal, normal)).astype(np.float32)
    return values


def _e4m3() -> NDArray[np.float32]:
    values = _small_floats(4, 3)
    values[[0x7F, 0xFF]] = np.nan
    return values


def _e5m2() -> NDArray[np.float32]:
    values = _small_floats(5, 2)
    values[[0x7C, 0xFC]] = np.inf, -np.inf
    values[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    return values


def _e8m0() -> NDArray[np.float32]:
    values = np.full(256, np.nan, dtype=np.float32)
    values[:255] = np.ldexp(1.0, np.arange(255) - 127)
    return values


_E8M0 = _e8m0()

_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = tuple(number / 12 for number in (0, 0.0625, 8, 12, 4, 6, 2, 3))

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

TABLES: Mapping[Table, NDArray[np.float32]] = {
    "nf4": np.array(_NF4, dtype=np.float32),
    "fp4": np.array([*_FP4, *(-number for number in _FP4)], dtype=np.float32),
    "iq4": np.array(_IQ4, dtype=np.float32),
    "e2m1": _small_floats(2, 1),
    "e4m3": _e4m3(),
    "e5m2": _e5m2(),
}
"""What each code stands for, by table: 16 or 256 numbers."""
