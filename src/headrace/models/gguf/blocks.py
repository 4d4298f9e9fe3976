"""Blocks of GGUF's quantised types as codes with scales, and as weights: the specification of what they mean.

Layouts are those of the block structures in https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. All numbers
are little-endian. Where a byte holds two codes of four bits, the low one is of the block's first half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.gguf.types import TYPES, BlockType
from headrace.quant import coded as codes_of
from headrace.quant.block_formats import BLOCK_CODES
from headrace.quant.coded import SCALE_TYPES, Coded

CHUNK = 1 << 20
"""Weights decoded at once, so that temporaries stay small."""

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Codes = tuple[NDArray[Any], NDArray[Any], Floats | None]
"""Of N blocks: codes uint8 [N, W], scales [N, G] in the type of `Coded.scales`, minima float32 [N, G] or None."""

_NIBBLES = np.array([0, 4], dtype=np.uint8)
_PAIRS = np.array([0, 2, 4, 6], dtype=np.uint8)


def dequantize(raw: Bytes, type: BlockType) -> Floats:
    """float32 [rows, columns] of rows of blocks, uint8 [rows, bytes a row].

    Equal to the package gguf's `quants.dequantize`, bit for bit; only the bits of a NaN may differ. In MXFP4, as in OCP
    MX 1.0 and in the kernels, an exponent of 255 is NaN and code 8 is -0.
    """
    rows, row_bytes = raw.shape
    columns = row_bytes // type.bytes * type.weights
    weights = np.empty((rows, columns), dtype=np.float32)
    step = max(1, CHUNK // columns)
    for row in range(0, rows, step):
        part = np.ascontiguousarray(raw[row : row + step])
        weights[row : row + step] = (
            codes_of.dequantize(coded(part, type)) if type.quantized else floats(part, type)
        )
    return weights


def floats(raw: Bytes, type: BlockType) -> NDArray[Any]:
    """Numbers of a type of floats: float32, but float16 for F16. BF16 is widened."""
    if type.name == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view("<f2" if type.name == "F16" else "<f4")


def coded(raw: Bytes, type: BlockType) -> Coded:
    """The matrix of rows of blocks, uint8 [rows, bytes a row], of a quantised type."""
    rows, row_bytes = raw.shape
    columns = row_bytes // type.bytes * type.weights
    format = BLOCK_CODES[type.name.lower()]
    assert format.group is not None
    groups = columns // format.group
    codes = np.empty((rows, columns), dtype=np.uint8)
    scales = np.empty((rows, groups), dtype=SCALE_TYPES[format.scale])
    minima = np.empty((rows, groups), dtype=np.float32) if format.zero == "minimum" else None
    step = max(1, CHUNK // columns)
    for row in range(0, rows, step):
        part = slice(row, row + step)
        blocks = np.ascontiguousarray(raw[part]).reshape(-1, type.bytes)
        found, scale, minimum = _DECODERS[type.name](blocks)
        codes[part], scales[part] = found.reshape(-1, columns), scale.reshape(-1, groups)
        if minima is not None and minimum is not None:
            minima[part] = minimum.reshape(-1, groups)
    return Coded(format, codes, scales, minima)


# ---- Parts of blocks. Each takes uint8 [N, bytes] ----


def _half(blocks: Bytes, at: int) -> NDArray[np.float16]:
    """The float16 at byte `at`, [N, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")


def _added(blocks: Bytes, at: int) -> Floats:
    """The float16 that is added to every weight, as the minimum that is subtracted."""
    return -_half(blocks, at).astype(np.float32)


def _nibbles(packed: Bytes, run: int) -> Bytes:
    """Codes of 4 bits: of each `run` bytes first all low ones, then all high ones. [N, 2 * bytes]"""
    codes: Bytes = (_shifted(packed, run, _NIBBLES) & np.uint8(15)).reshape(len(packed), -1)
    return codes


def _shifted(packed: Bytes, run: int, shifts: Bytes) -> Bytes:
    """Each `run` bytes once for every shift, shifted right by it. [N, bytes / run, shifts, run]"""
    return packed.reshape(len(packed), -1, 1, run) >> shifts[None, None, :, None]


def _product(scale: NDArray[np.float16], factors: NDArray[Any]) -> Floats:
    """[N, 1] times [N, G], in float32."""
    with np.errstate(invalid="ignore", over="ignore"):  # scales may be NaN and infinite in a damaged file
        product: Floats = scale.astype(np.float32) * factors.astype(np.float32)
    return product


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
    """d, 16 bytes of codes 0-15: d * (code - 8); of IQ4_NL d * table[code]."""
    return _nibbles(blocks[:, 2:], 16), _half(blocks, 0), None


def _q4_1(blocks: Bytes) -> Codes:
    """d, m, 16 bytes of codes 0-15: d * code + m."""
    return _nibbles(blocks[:, 4:], 16), _half(blocks, 0), _added(blocks, 2)


def _fifth_bits(packed: Bytes) -> Bytes:
    """16 times the bits of 4 bytes, the lowest bit first. [N, 32]"""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _q5_0(blocks: Bytes) -> Codes:
    """d, 4 bytes of fifth bits, 16 bytes of low bits: d * (code - 16)."""
    return _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6]), _half(blocks, 0), None


def _q5_1(blocks: Bytes) -> Codes:
    """d, m, 4 bytes of fifth bits, 16 bytes of low bits: d * code + m."""
    return _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8]), _half(blocks, 0), _added(blocks, 2)


def _q8_0(blocks: Bytes) -> Codes:
    """d, 32 codes from -128 to 127: d * code."""
    return blocks[:, 2:] ^ np.uint8(128), _half(blocks, 0), None


def _mxfp4(blocks: Bytes) -> Codes:
    """e, 16 bytes of codes 0-15: 2^(e - 127) * table[code]."""
    return _nibbles(blocks[:, 1:], 16), blocks[:, :1], None


# ---- Types with blocks of 256 ----


def _q2_k(blocks: Bytes) -> Codes:
    """16 bytes of 4-bit scales and minima, 64 bytes of codes 0-3, d, dmin: 16 groups."""
    scales, codes = blocks[:, :16], _shifted(blocks[:, 16:80], 32, _PAIRS) & 3
    return (
        codes.reshape(len(blocks), -1),
        _product(_half(blocks, 80), scales & 15),
        _product(_half(blocks, 82), scales >> 4),
    )


def _q3_k(blocks: Bytes) -> Codes:
    """32 bytes of third bits, 64 bytes of low bits, 12 bytes of 6-bit scales, d: 16 groups.

    A code is 0 to 7, 4 standing for 0. Scales are -32 to 31: 8 bytes with their low 4 bits (0-7, above them
    8-15), then 4 bytes with their high 2 bits (0-3, 4-7, 8-11, 12-15 from low to high).
    """
    count = len(blocks)
    third = np.unpackbits(blocks[:, None, :32], axis=1, bitorder="little").reshape(count, -1)  # bit by bit
    low = (_shifted(blocks[:, 32:96], 32, _PAIRS) & 3).reshape(count, -1)
    low_bits = _nibbles(blocks[:, 96:104], 8)
    high_bits = (_shifted(blocks[:, 104:108], 4, _PAIRS) & 3).reshape(count, -1)
    scales = (low_bits | high_bits << 4).view(np.int8) - np.int8(32)
    return low | third << 2, _product(_half(blocks, 108), scales), None


def _q4_k(blocks: Bytes) -> Codes:
    """d, dmin, 12 bytes of 6-bit scales and minima, 128 bytes of codes 0-15: 8 groups."""
    scales, minima = _six_bits(blocks[:, 4:16])
    return (
        _nibbles(blocks[:, 16:], 32),
        _product(_half(blocks, 0), scales),
        _product(_half(blocks, 2), minima),
    )


def _q5_k(blocks: Bytes) -> Codes:
    """As Q4_K, with 32 bytes of fifth bits before the low ones: bit g of byte i is of code i of group g."""
    scales, minima = _six_bits(blocks[:, 4:16])
    fifth = np.unpackbits(blocks[:, None, 16:48], axis=1, bitorder="little").reshape(len(blocks), -1)
    codes = _nibbles(blocks[:, 48:], 32) | fifth << 4
    return codes, _product(_half(blocks, 0), scales), _product(_half(blocks, 2), minima)


def _q6_k(blocks: Bytes) -> Codes:
    """128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 scales of 8 bits, d: d * scale * (code - 32), 16 groups."""
    low = _nibbles(blocks[:, :128], 64)
    high = (_shifted(blocks[:, 128:192], 32, _PAIRS) & 3).reshape(len(blocks), -1)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return low | high << 4, _product(_half(blocks, 208), scales), None


def _iq4_xs(blocks: Bytes) -> Codes:
    """d, 2 bytes with the high 2 bits and 4 bytes with the low 4 bits of 8 scales, 128 bytes of codes: 8 groups.

    A weight is d * (scale - 32) * table[code].
    """
    high = (_shifted(blocks[:, 2:4], 1, _PAIRS) & 3).reshape(len(blocks), -1)
    low = _nibbles(blocks[:, 4:8], 1)
    scales = (low | high << 4).view(np.int8) - np.int8(32)
    return _nibbles(blocks[:, 8:], 16), _product(_half(blocks, 0), scales), None


_DECODERS: Mapping[str, Callable[[Bytes], Codes]] = {
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
    "IQ4_NL": _q4_0,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}

assert _DECODERS.keys() == {name for name, one in TYPES.items() if one.quantized}
