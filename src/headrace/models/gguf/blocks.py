"""Blocks of GGUF's quantised types as codes with scales, and as weights: the specification of what they mean.

Layouts are those of the block structures in https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. All numbers
are little-endian. Where a byte holds two codes of four bits, the low one is of the block's first half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.gguf.types import TYPES, BlockType
from headrace.quant.code_format import CodeFormat
from headrace.quant.coded import TABLES, Coded

CHUNK = 1 << 20
"""Weights decoded at once, so that temporaries stay small."""

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_NIBBLES = np.array([0, 4], dtype=np.uint8)
_PAIRS = np.array([0, 2, 4, 6], dtype=np.uint8)

IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.int8
)
"""What the codes of IQ4_NL and IQ4_XS stand for: finer near zero, where most weights are."""

E2M1_DOUBLED = (2 * TABLES["e2m1"]).astype(np.int8)
"""Twice what the codes of MXFP4 stand for (OCP Microscaling Formats 1.0, section 5.3.3), so that they are integers."""


_FORMATS: Mapping[str, CodeFormat] = {
    "Q4_0": CodeFormat(4, group=32),
    "Q4_1": CodeFormat(4, zero="minimum", group=32),
    "Q5_0": CodeFormat(5, group=32),
    "Q5_1": CodeFormat(5, zero="minimum", group=32),
    "Q8_0": CodeFormat(8, group=32),
    "Q2_K": CodeFormat(2, scale="f32", zero="minimum", group=16),
    "Q3_K": CodeFormat(3, scale="f32", group=16),
    "Q4_K": CodeFormat(4, scale="f32", zero="minimum", group=32),
    "Q5_K": CodeFormat(5, scale="f32", zero="minimum", group=32),
    "Q6_K": CodeFormat(6, scale="f32", group=16),
    "IQ4_NL": CodeFormat(8, group=32),
    "IQ4_XS": CodeFormat(8, scale="f32", group=32),
    "MXFP4": CodeFormat(8, scale="f32", group=32),
}
CODE_FORMATS: Mapping[str, CodeFormat] = {
    name: replace(format, blocks=name.lower()) for name, format in _FORMATS.items()
}
"""What each type is without its packing, by name: scales are products where a block has scales of scales, and codes
what they stand for where a type has a table."""


@dataclass(frozen=True, slots=True)
class Codes:
    """N blocks of W weights in G groups: weight = scale * code - minimum, in float32.

    codes: int8 [N, W], after the table of the types that have one. scales: float32 [N, G]; group g is codes
    g * W / G to (g + 1) * W / G - 1. minima: float32 [N, G], or None where they are all zero.
    """

    codes: NDArray[np.int8]
    scales: Floats
    minima: Floats | None = None

    def weights(self) -> Floats:
        """float32 [N, W]."""
        count, groups = self.scales.shape
        grouped = self.codes.reshape(count, groups, -1).astype(np.float32)  # [N, G, W / G]
        with np.errstate(invalid="ignore", over="ignore"):  # scales may be NaN and infinite in a damaged file
            grouped *= self.scales[:, :, None]
            if self.minima is not None:
                grouped -= self.minima[:, :, None]
        return grouped.reshape(count, -1)


def dequantize(raw: Bytes, type: BlockType) -> Floats:
    """float32 [rows, columns] of rows of blocks, uint8 [rows, bytes a row].

    Equal to the package gguf's `quants.dequantize`, bit for bit (but for which NaN a NaN is).
    """
    rows, row_bytes = raw.shape
    columns = row_bytes // type.bytes * type.weights
    weights = np.empty((rows, columns), dtype=np.float32)
    step = max(1, CHUNK // columns)
    for row in range(0, rows, step):
        part = np.ascontiguousarray(raw[row : row + step])
        weights[row : row + step] = floats(part, type).astype(np.float32).reshape(-1, columns)
    return weights


def floats(raw: Bytes, type: BlockType) -> NDArray[Any]:
    """As many whole blocks as `raw` holds, in order: float32, but float16 for F16. BF16 is widened."""
    if type.name == "F16":
        return raw.view("<f2")
    if type.name == "F32":
        return raw.view("<f4")
    if type.name == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return decode(raw, type).weights()


def decode(raw: Bytes, type: BlockType) -> Codes:
    """The blocks of a contiguous array as codes; `type` is quantised."""
    return _DECODERS[type.name](raw.reshape(-1, type.bytes))


def coded(raw: Bytes, type: BlockType) -> Coded:
    """The matrix of rows of blocks, uint8 [rows, bytes a row], in the type's format of `CODE_FORMATS`."""
    rows, row_bytes = raw.shape
    columns = row_bytes // type.bytes * type.weights
    format = CODE_FORMATS[type.name]
    assert format.group is not None
    groups = columns // format.group
    codes = np.empty((rows, columns), dtype=np.uint8)
    scales = np.empty((rows, groups), dtype=np.float16 if format.scale == "f16" else np.float32)
    minima = np.empty((rows, groups), dtype=np.float32) if format.zero == "minimum" else None
    middle = np.uint8(1 << (format.bits - 1) if format.zero == "none" else 0)
    step = max(1, CHUNK // columns)
    for row in range(0, rows, step):
        part = slice(row, row + step)
        found = decode(np.ascontiguousarray(raw[part]), type)
        codes[part] = found.codes.view(np.uint8).reshape(-1, columns) + middle
        with np.errstate(over="ignore"):
            scales[part] = found.scales.reshape(-1, groups)
        if minima is not None and found.minima is not None:
            minima[part] = found.minima.reshape(-1, groups)
    return Coded(format, codes, scales, minima)


# ---- Parts of blocks. Each takes uint8 [N, bytes] ----


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at`, as float32 [N, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes, run: int) -> Bytes:
    """Codes of 4 bits: of each `run` bytes first all low ones, then all high ones. [N, 2 * bytes]"""
    codes: Bytes = (_shifted(packed, run, _NIBBLES) & np.uint8(15)).reshape(len(packed), -1)
    return codes


def _shifted(packed: Bytes, run: int, shifts: Bytes) -> Bytes:
    """Each `run` bytes once for every shift, shifted right by it. [N, bytes / run, shifts, run]"""
    return packed.reshape(len(packed), -1, 1, run) >> shifts[None, None, :, None]


def _product(scale: Floats, factors: NDArray[Any]) -> Floats:
    """[N, 1] times [N, G], in float32."""
    with np.errstate(invalid="ignore", over="ignore"):
        return scale * factors.astype(np.float32)


def _six_bits(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Scales and minima of Q4_K and Q5_K, 6 bits each, [N, 8] both, from 12 bytes.

    Bytes 0-3: scales 0-3, bytes 4-7: minima 0-3, in the low 6 bits. Bytes 8-11: the low 4 bits of scales 4-7 and, above
    them, of minima 4-7, whose high 2 bits are the high 2 bits of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scales, minima


# ---- Types with blocks of 32 ----


def _q4_0(blocks: Bytes) -> Codes:
    """d, 16 bytes of codes 0-15: d * (code - 8)."""
    return Codes(_nibbles(blocks[:, 2:], 16).view(np.int8) - np.int8(8), _half(blocks, 0))


def _q4_1(blocks: Bytes) -> Codes:
    """d, m, 16 bytes of codes 0-15: d * code + m."""
    return Codes(_nibbles(blocks[:, 4:], 16).view(np.int8), _half(blocks, 0), -_half(blocks, 2))


def _fifth_bits(packed: Bytes) -> Bytes:
    """16 times the bits of 4 bytes, the lowest bit first. [N, 32]"""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _q5_0(blocks: Bytes) -> Codes:
    """d, 4 bytes of fifth bits, 16 bytes of low bits: d * (code - 16)."""
    codes = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return Codes(codes.view(np.int8) - np.int8(16), _half(blocks, 0))


def _q5_1(blocks: Bytes) -> Codes:
    """d, m, 4 bytes of fifth bits, 16 bytes of low bits: d * code + m."""
    codes = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return Codes(codes.view(np.int8), _half(blocks, 0), -_half(blocks, 2))


def _q8_0(blocks: Bytes) -> Codes:
    """d, 32 codes from -128 to 127: d * code."""
    return Codes(np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _half(blocks, 0))


def _iq4_nl(blocks: Bytes) -> Codes:
    """d, 16 bytes of codes 0-15: d * table[code]."""
    return Codes(IQ4_VALUES[_nibbles(blocks[:, 2:], 16)], _half(blocks, 0))


def _mxfp4(blocks: Bytes) -> Codes:
    """e, 16 bytes of codes 0-15: 2^(e - 127) * e2m1[code]. Scales are half of that, as the table is doubled.

    As in ggml, e = 255 is 2^128 and not a NaN.
    """
    exponents = blocks[:, :1].astype(np.uint32)
    # Half of the two smallest powers is subnormal.
    bits = np.where(exponents < 2, 0x0020_0000 << np.minimum(exponents, 1), (exponents - 1) << 23)
    return Codes(E2M1_DOUBLED[_nibbles(blocks[:, 1:], 16)], bits.astype(np.uint32).view(np.float32))


# ---- Types with blocks of 256 ----


def _q2_k(blocks: Bytes) -> Codes:
    """16 bytes of 4-bit scales and minima, 64 bytes of codes 0-3, d, dmin: 16 groups."""
    scales, codes = blocks[:, :16], _shifted(blocks[:, 16:80], 32, _PAIRS) & 3
    return Codes(
        codes.reshape(len(blocks), -1).view(np.int8),
        _product(_half(blocks, 80), scales & 15),
        _product(_half(blocks, 82), scales >> 4),
    )


def _q3_k(blocks: Bytes) -> Codes:
    """32 bytes of third bits, 64 bytes of low bits, 12 bytes of 6-bit scales, d: 16 groups.

    A code is -4 to 3, its third bit set from 0 on. Scales are -32 to 31: 8 bytes with their low 4 bits (0-7, above them
    8-15), then 4 bytes with their high 2 bits (0-3, 4-7, 8-11, 12-15 from low to high).
    """
    count = len(blocks)
    third = np.unpackbits(blocks[:, None, :32], axis=1, bitorder="little").reshape(count, -1)  # bit by bit
    low = (_shifted(blocks[:, 32:96], 32, _PAIRS) & 3).reshape(count, -1)
    codes = (low | third << 2).view(np.int8) - np.int8(4)
    low_bits = _nibbles(blocks[:, 96:104], 8)
    high_bits = (_shifted(blocks[:, 104:108], 4, _PAIRS) & 3).reshape(count, -1)
    scales = (low_bits | high_bits << 4).view(np.int8) - np.int8(32)
    return Codes(codes, _product(_half(blocks, 108), scales))


def _q4_k(blocks: Bytes) -> Codes:
    """d, dmin, 12 bytes of 6-bit scales and minima, 128 bytes of codes 0-15: 8 groups."""
    scales, minima = _six_bits(blocks[:, 4:16])
    return Codes(
        _nibbles(blocks[:, 16:], 32).view(np.int8),
        _product(_half(blocks, 0), scales),
        _product(_half(blocks, 2), minima),
    )


def _q5_k(blocks: Bytes) -> Codes:
    """As Q4_K, with 32 bytes of fifth bits before the low ones: bit g of byte i is of code i of group g."""
    scales, minima = _six_bits(blocks[:, 4:16])
    fifth = np.unpackbits(blocks[:, None, 16:48], axis=1, bitorder="little").reshape(len(blocks), -1)
    codes = _nibbles(blocks[:, 48:], 32) | fifth << 4
    return Codes(codes.view(np.int8), _product(_half(blocks, 0), scales), _product(_half(blocks, 2), minima))


def _q6_k(blocks: Bytes) -> Codes:
    """128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 scales of 8 bits, d: d * scale * (code - 32), 16 groups."""
    low = _nibbles(blocks[:, :128], 64)
    high = (_shifted(blocks[:, 128:192], 32, _PAIRS) & 3).reshape(len(blocks), -1)
    codes = (low | high << 4).view(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return Codes(codes, _product(_half(blocks, 208), scales))


def _iq4_xs(blocks: Bytes) -> Codes:
    """d, 2 bytes with the high 2 bits and 4 bytes with the low 4 bits of 8 scales, 128 bytes of codes: 8 groups.

    A weight is d * (scale - 32) * table[code].
    """
    high = (_shifted(blocks[:, 2:4], 1, _PAIRS) & 3).reshape(len(blocks), -1)
    low = _nibbles(blocks[:, 4:8], 1)
    scales = (low | high << 4).view(np.int8) - np.int8(32)
    return Codes(IQ4_VALUES[_nibbles(blocks[:, 8:], 16)], _product(_half(blocks, 0), scales))


_DECODERS: dict[str, Callable[[Bytes], Codes]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}

assert _DECODERS.keys() == CODE_FORMATS.keys() == {name for name, one in TYPES.items() if one.quantized}
