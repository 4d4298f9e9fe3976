"""Floats rounded to codes that are not whole numbers: NF4, MXFP4 and 8-bit floats, nearest first. numpy only.

`int8` and `int4` specify those that are, which the native kernels choose by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.quant.code_format import CodeFormat
from headrace.quant.coded import CHUNK, SCALE_TYPES, TABLES, Coded
from headrace.quant.format import Scale, WeightFormat

_LARGEST_E4M3, _SMALLEST_NORMAL_E4M3 = 448.0, 2.0**-6
_LARGEST_F16 = 65504.0
_NAN: Mapping[Scale, Any] = {"f16": np.float16(np.nan), "f32": np.float32(np.nan), "e8m0": np.uint8(255)}


def encode(weights: NDArray[np.float32], target: WeightFormat) -> Coded:
    """The codes of a matrix [R, C] in a format of `parse_format` with a table, or of 8-bit floats.

    A group's scale makes its largest magnitude the largest code; MXFP4's is the power of two of OCP MX 1.0, 6.3, with
    which values above the largest code become that. The scale of a group with a weight that is not finite is NaN.
    """
    rows, columns = weights.shape
    group = target.group or columns
    groups = -(-columns // group)
    table = target.table or "e4m3"
    format = CodeFormat(target.bits, table, target.scale, group=target.group)
    codes = np.empty((rows, columns), dtype=np.uint8)
    scales = np.empty((rows, groups), dtype=SCALE_TYPES[target.scale])
    step = max(1, CHUNK // columns)
    for first in range(0, rows, step):
        part = np.zeros((min(step, rows - first), groups * group), dtype=np.float32)
        part[:, :columns] = weights[first : first + step]
        grouped = part.reshape(len(part), groups, group)
        finite = np.isfinite(grouped).all(-1)
        grouped[~finite] = 0.0
        stored, numbers = _scales(np.abs(grouped).max(-1), table)
        scales[first : first + step] = np.where(finite, stored, _NAN[target.scale])
        factors = np.divide(1.0, numbers, out=np.zeros_like(numbers), where=numbers != 0)
        chosen = _nearest(grouped * factors[..., None], table)
        codes[first : first + step] = chosen.reshape(len(part), -1)[:, :columns]
    return Coded(format, codes, scales)


def _scales(largest: NDArray[np.float32], table: str) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """(as stored, as numbers) of groups with those largest magnitudes."""
    if table == "nf4":
        stored = np.minimum(largest, np.float32(_LARGEST_F16)).astype(np.float16)
        return stored, stored.astype(np.float32)
    if table == "e4m3":
        scales = largest / np.float32(_LARGEST_E4M3)
        return scales, scales
    exponents = np.frexp(largest)[1] - 1 - 2  # the largest code is 1.5 * 2 ** 2
    powers = np.where(largest > 0, np.clip(exponents + 127, 0, 254), 127).astype(np.uint8)
    return powers, np.ldexp(np.float32(1), powers.astype(np.int32) - 127)


def _nearest(values: NDArray[np.float32], table: str) -> NDArray[np.uint8]:
    """The code of the entry next to each value; of two, that with an even mantissa."""
    if table == "e4m3":
        return _nearest_e4m3(values)
    if table == "nf4":
        entries = TABLES["nf4"]
        middles = (entries[1:] + entries[:-1]) / 2
        return _count_below(middles, values)
    entries = TABLES["e2m1"][:8]
    middles = (entries[1:] + entries[:-1]) / 2
    middles[1::2] = np.nextafter(
        middles[1::2], np.float32(0)
    )  # a tie between an odd code and the next goes up
    codes = _count_below(middles, np.abs(values))
    return codes | np.where(np.signbit(values), np.uint8(0x08), np.uint8(0))


def _count_below(limits: NDArray[Any], values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """How many of a few limits each value is above; comparing with all of them is faster than a search."""
    counts = np.zeros(values.shape, dtype=np.uint8)
    for limit in limits:
        counts += values > limit
    return counts


def _nearest_e4m3(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """By the bits: a float32 has 20 bits of mantissa more, and an exponent that is 120 larger."""
    magnitudes = np.minimum(np.abs(values), np.float32(_LARGEST_E4M3))
    bits = magnitudes.view(np.uint32)
    rounded = (bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20
    normal = rounded - np.uint32(120 << 3)
    subnormal = np.rint(magnitudes * 512).astype(np.uint32)  # steps of 2 ** -9
    codes = np.where(magnitudes < _SMALLEST_NORMAL_E4M3, subnormal, normal).astype(np.uint8)
    return codes | np.where(np.signbit(values), np.uint8(0x80), np.uint8(0))
