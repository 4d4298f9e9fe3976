"""Codes of fewer than 8 bits out of words and bytes. numpy only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def fields_of_words(words: NDArray[Any], bits: int, count: int) -> NDArray[np.uint8]:
    """The first `count` codes of each row: words [R, W] of 32 bits hold 32 // bits codes each, lowest bits first.

    Bits that are left over at the top of a word are padding.
    """
    if 8 % bits == 0:  # then a byte holds whole codes too
        return np.ascontiguousarray(_parts(np.ascontiguousarray(words).view(np.uint8), bits)[:, :count])
    return np.ascontiguousarray(_parts(words.view(np.uint32), bits)[:, :count])


def _parts(numbers: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """The codes of each number [R, N], lowest bits first: [R, N * codes of a number]."""
    each, mask = 8 * numbers.itemsize // bits, numbers.dtype.type((1 << bits) - 1)
    if each == 1:
        return numbers
    out = np.empty((*numbers.shape, each), dtype=np.uint8)
    for place in range(each):
        out[..., place] = (numbers >> numbers.dtype.type(bits * place)) & mask
    return out.reshape(len(numbers), -1)


def stream_of_words(words: NDArray[Any], bits: int, count: int) -> NDArray[np.uint8]:
    """The first `count` codes of each row: words [R, W] of 32 bits are one run of bits, lowest first."""
    if 32 % bits == 0:
        return fields_of_words(words, bits, count)
    rows = len(words)
    out = np.empty((rows, count), dtype=np.uint8)
    step = max(1, (1 << 20) // max(1, count))
    for first in range(0, rows, step):
        part = np.ascontiguousarray(words[first : first + step]).view(np.uint8)
        loose = np.unpackbits(part, axis=1, bitorder="little")[:, : count * bits]
        codes = loose.reshape(len(part), count, bits)
        out[first : first + step] = np.packbits(codes, axis=2, bitorder="little")[..., 0]
    return out


def nibbles(packed: NDArray[np.uint8], *, high_first: bool = False) -> NDArray[np.uint8]:
    """Two codes of 4 bits of each byte: [..., N] gives [..., 2 N]."""
    out = np.empty((*packed.shape, 2), dtype=np.uint8)
    out[..., int(high_first)] = packed & 0x0F
    out[..., int(not high_first)] = packed >> 4
    return out.reshape(*packed.shape[:-1], -1)
