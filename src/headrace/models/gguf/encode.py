"""Weights as blocks of GGUF's quantised types, by rounding to the nearest code: the converse of `blocks`.

Scales are those that the largest weight of a group needs; no search for better ones, and no calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.gguf.types import BlockType
from headrace.models.gguf.blocks import CHUNK, Bytes, Floats
from headrace.quant.coded import TABLES

_IQ4 = TABLES["iq4"]


@dataclass(frozen=True, slots=True)
class BlockFields:
    """What N blocks hold, before it is packed.

    d, minimum: float32 [N, 1] that float16 holds. codes: [N, weights of a block], from 0 on. scales, minima: whole
    numbers [N, groups] of types with blocks of 256. A weight is d * scale * (code - zero) - minimum * its factor; types
    with blocks of 32 have no factors, and Q4_1 and Q5_1 add their minimum.
    """

    d: Floats
    codes: NDArray[Any]
    minimum: Floats | None = None
    scales: NDArray[Any] | None = None
    minima: NDArray[Any] | None = None


def encode(values: Floats, type: BlockType) -> Bytes:
    """uint8 [rows, bytes of a row] of weights [rows, columns], whose columns are whole blocks of a quantised type.

    The scale of a block with a weight that is not finite is NaN. MXFP4 is left out: `quant.rounding` rounds to it,
    whose packed form needs no blocks.
    """
    rows, columns = values.shape
    size = type.size(columns)
    raw = np.empty((rows, size), dtype=np.uint8)
    step = max(1, CHUNK // columns)
    for row in range(0, rows, step):
        blocks = np.ascontiguousarray(values[row : row + step], dtype=np.float32).reshape(-1, type.weights)
        finite = np.isfinite(blocks).all(axis=1, keepdims=True)
        whole = bool(finite.all())
        fields = _ENCODERS[type.name](blocks if whole else np.where(finite, blocks, np.float32(0)))
        if not whole:
            fields = replace(fields, d=np.where(finite, fields.d, np.float32(np.nan)))
        raw[row : row + step] = pack(fields, type).reshape(-1, size)
    return raw


def pack(fields: BlockFields, type: BlockType) -> Bytes:
    """uint8 [N, bytes of a block]."""
    packed = np.concatenate(_PACKERS[type.name](fields), axis=1)
    assert packed.shape[1] == type.bytes
    return packed


# ---- Parts of blocks ----


def _half(numbers: Floats) -> Floats:
    """The nearest float16 that is not infinite, as float32."""
    return np.clip(numbers, -65504, 65504).astype(np.float16).astype(np.float32)


def _stored(numbers: Floats) -> Bytes:
    """float16 numbers [N, 1] as bytes [N, 2]."""
    return numbers.astype("<f2").view(np.uint8)


def _over(values: Floats, scales: Floats) -> Floats:
    """Quotients, and 0 where the scale is 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotients = values / scales
    return np.where(scales == 0, np.float32(0), np.nan_to_num(quotients)).astype(np.float32)


def _rounded(values: Floats, low: int, high: int) -> NDArray[np.int16]:
    return np.clip(np.rint(values), low, high).astype(np.int16)


def _extreme(values: Floats) -> Floats:
    """The number of the largest magnitude along the last axis, which stays."""
    at = np.abs(values).argmax(axis=-1, keepdims=True)
    return np.take_along_axis(values, at, axis=-1)


def _nibbles(codes: NDArray[Any], run: int) -> Bytes:
    """Codes [N, W] of 4 bits in bytes: of each 2 `run` codes the first half in the low bits."""
    low_high = codes.astype(np.uint8).reshape(len(codes), -1, 2, run)
    packed: Bytes = (low_high[:, :, 0] | low_high[:, :, 1] << np.uint8(4)).reshape(len(codes), -1)
    return packed


def _pairs(codes: NDArray[Any], run: int) -> Bytes:
    """Codes [N, W] of 2 bits in bytes: of each 4 `run` codes the first quarter in the lowest bits."""
    parts = codes.astype(np.uint8).reshape(len(codes), -1, 4, run)
    shifted = parts << np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    packed: Bytes = np.bitwise_or.reduce(shifted, axis=2).reshape(len(codes), -1)
    return packed


def _bits(bits: NDArray[Any], rows: int) -> Bytes:
    """Bits [N, W] in bytes: bit b of byte i is number b * W / 8 + i (rows 8), or bits in order (rows 1)."""
    if rows == 1:
        return np.packbits(bits.astype(np.uint8), axis=1, bitorder="little")
    return np.packbits(bits.astype(np.uint8).reshape(len(bits), 8, -1), axis=1, bitorder="little")[:, 0]


def _six_bits(scales: NDArray[Any], minima: NDArray[Any]) -> Bytes:
    """The 12 bytes that hold 8 scales and 8 minima, see blocks._six_bits."""
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    high_s, high_m = s[:, 4:] >> 4 << 6, m[:, 4:] >> 4 << 6
    return np.concatenate(
        [s[:, :4] | high_s, m[:, :4] | high_m, (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4], axis=1
    )


# ---- How fields lie in a block ----


def _of_small(fields: BlockFields) -> list[Bytes]:
    """Types with blocks of 32."""
    return [_stored(fields.d), *([] if fields.minimum is None else [_stored(fields.minimum)])]


def _pack_4(fields: BlockFields) -> list[Bytes]:
    return [*_of_small(fields), _nibbles(fields.codes, 16)]


def _pack_5(fields: BlockFields) -> list[Bytes]:
    return [*_of_small(fields), _bits(fields.codes >> 4, 1), _nibbles(fields.codes & 15, 16)]


def _pack_q8_0(fields: BlockFields) -> list[Bytes]:
    return [_stored(fields.d), (fields.codes.astype(np.int16) - 128).astype(np.int8).view(np.uint8)]


def _of_super(fields: BlockFields) -> tuple[NDArray[Any], NDArray[Any], Bytes]:
    """(scales, minima, bytes of d and of the minimum)."""
    assert fields.scales is not None and fields.minima is not None and fields.minimum is not None
    steps = np.concatenate([_stored(fields.d), _stored(fields.minimum)], axis=1)
    return fields.scales, fields.minima, steps


def _pack_q2_k(fields: BlockFields) -> list[Bytes]:
    scales, minima, steps = _of_super(fields)
    return [(scales | minima << 4).astype(np.uint8), _pairs(fields.codes, 32), steps]


def _pack_q3_k(fields: BlockFields) -> list[Bytes]:
    assert fields.scales is not None
    codes, six = fields.codes, fields.scales + 32
    low = [_bits(codes >> 2, 8), _pairs(codes & 3, 32)]
    return [*low, _nibbles(six & 15, 8), _pairs(six >> 4, 4), _stored(fields.d)]


def _pack_q4_k(fields: BlockFields) -> list[Bytes]:
    scales, minima, steps = _of_super(fields)
    return [steps, _six_bits(scales, minima), _nibbles(fields.codes, 32)]


def _pack_q5_k(fields: BlockFields) -> list[Bytes]:
    scales, minima, steps = _of_super(fields)
    codes = fields.codes
    return [steps, _six_bits(scales, minima), _bits(codes >> 4, 8), _nibbles(codes & 15, 32)]


def _pack_q6_k(fields: BlockFields) -> list[Bytes]:
    assert fields.scales is not None
    codes, scales = fields.codes, fields.scales.astype(np.int8).view(np.uint8)
    return [_nibbles(codes & 15, 64), _pairs(codes >> 4, 32), scales, _stored(fields.d)]


def _pack_iq4_xs(fields: BlockFields) -> list[Bytes]:
    assert fields.scales is not None
    six = fields.scales + 32
    return [_stored(fields.d), _pairs(six >> 4, 1), _nibbles(six & 15, 1), _nibbles(fields.codes, 16)]


_PACKERS: Mapping[str, Callable[[BlockFields], list[Bytes]]] = {
    "Q4_0": _pack_4,
    "Q4_1": _pack_4,
    "Q5_0": _pack_5,
    "Q5_1": _pack_5,
    "Q8_0": _pack_q8_0,
    "Q2_K": _pack_q2_k,
    "Q3_K": _pack_q3_k,
    "Q4_K": _pack_q4_k,
    "Q5_K": _pack_q5_k,
    "Q6_K": _pack_q6_k,
    "IQ4_NL": _pack_4,
    "IQ4_XS": _pack_iq4_xs,
}


# ---- The nearest codes: types with blocks of 32 ----


def _centred(blocks: Floats, levels: int) -> BlockFields:
    """The number of the largest magnitude becomes the lowest code."""
    d = _half(_extreme(blocks) / np.float32(-levels))
    return BlockFields(d, _rounded(_over(blocks, d), -levels, levels - 1) + np.int16(levels))


def _with_minimum(blocks: Floats, levels: int) -> BlockFields:
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    d, m = _half((high - low) / levels), _half(low)
    return BlockFields(d, _rounded(_over(blocks - m, d), 0, levels), m)


def _q8_0(blocks: Floats) -> BlockFields:
    d = _half(np.abs(blocks).max(axis=1, keepdims=True) / 127)
    return BlockFields(d, _rounded(_over(blocks, d), -127, 127) + np.int16(128))


def _nearest(values: Floats, table: Floats) -> NDArray[np.intp]:
    """Places of the nearest numbers of a rising table."""
    return np.searchsorted((table[1:] + table[:-1]) / 2, values)


def _iq4_nl(blocks: Floats) -> BlockFields:
    d = _half(_extreme(blocks) / _IQ4[0])
    return BlockFields(d, _nearest(_over(blocks, d), _IQ4))


# ---- Types with blocks of 256 ----


def _signed_super(
    blocks: Floats, groups: int, levels: int, most: int
) -> tuple[Floats, NDArray[np.int16], Floats]:
    """(d, scales [N, groups] from -most to most - 1, weights over their scales): the extreme weight is -levels."""
    grouped = blocks.reshape(len(blocks), groups, -1)
    wanted = _extreme(grouped)[:, :, 0] / np.float32(-levels)
    d = _half(_extreme(wanted) / np.float32(-most))
    scales = _rounded(_over(wanted, d), -most, most - 1)
    over = _over(grouped, (d * scales.astype(np.float32))[:, :, None])
    return d, scales, over.reshape(len(blocks), -1)


def _centred_super(blocks: Floats, levels: int, most: int) -> BlockFields:
    d, scales, over = _signed_super(blocks, 16, levels, most)
    return BlockFields(d, _rounded(over, -levels, levels - 1) + np.int16(levels), scales=scales)


def _super_with_minima(blocks: Floats, groups: int, levels: int, most: int) -> BlockFields:
    """Scales and minima from 0 to most, codes from 0 to levels."""
    grouped = blocks.reshape(len(blocks), groups, -1)
    low = np.minimum(grouped.min(axis=2), 0)
    high = np.maximum(grouped.max(axis=2), low)
    d, scales = _steps((high - low) / levels, most)
    dmin, minima = _steps(-low, most)
    shifted = grouped + (dmin * minima.astype(np.float32))[:, :, None]
    codes = _rounded(_over(shifted, (d * scales.astype(np.float32))[:, :, None]), 0, levels)
    return BlockFields(d, codes.reshape(len(blocks), -1), dmin, scales, minima)


def _steps(numbers: Floats, most: int) -> tuple[Floats, NDArray[np.int16]]:
    """Numbers [N, groups], none negative, as multiples of one step each row: (step, how many)."""
    step = _half(numbers.max(axis=1, keepdims=True) / most)
    return step, _rounded(_over(numbers, step), 0, most)


def _iq4_xs(blocks: Floats) -> BlockFields:
    d, scales, over = _signed_super(blocks, 8, 127, 32)
    return BlockFields(d, _nearest(over, _IQ4), scales=scales)


_ENCODERS: Mapping[str, Callable[[Floats], BlockFields]] = {
    "Q4_0": lambda blocks: _centred(blocks, 8),
    "Q4_1": lambda blocks: _with_minimum(blocks, 15),
    "Q5_0": lambda blocks: _centred(blocks, 16),
    "Q5_1": lambda blocks: _with_minimum(blocks, 31),
    "Q8_0": _q8_0,
    "Q2_K": lambda blocks: _super_with_minima(blocks, 16, 3, 15),
    "Q3_K": lambda blocks: _centred_super(blocks, 4, 32),
    "Q4_K": lambda blocks: _super_with_minima(blocks, 8, 15, 63),
    "Q5_K": lambda blocks: _super_with_minima(blocks, 8, 31, 63),
    "Q6_K": lambda blocks: _centred_super(blocks, 32, 128),
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
