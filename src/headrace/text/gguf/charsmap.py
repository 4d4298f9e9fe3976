"""SentencePiece's normalization table: the longest known beginning of the text is replaced, again and again.

The table of a model file (`precompiled_charsmap`) is the size in bytes of a double array, that array of 32-bit units,
and then the replacements, each ended by a zero byte. The array is a trie over UTF-8 bytes as `darts-clone` lays it out.
A unit has the byte that leads to it (bits 0 to 7, and bit 31, which is 0), whether a text ends at it (bit 8), and the
offset to its children (bits 10 to 30, times 256 if bit 9 is set). A child's position is its parent's position xor the
offset xor the byte. Where a text ends, the child for byte 0 has bit 31 and the place of the replacement.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.errors import TokenizerError

MAX_REPLACEMENT_BYTES = 256
"""Longest replacement, so that a text grows by a bounded factor; the longest in Unicode's normal forms has 33."""

_LABEL = 0x80000000 | 0xFF
_VALUE = 0x7FFFFFFF
_DAMAGED = "tokenizer.ggml.precompiled_charsmap of the GGUF file is damaged"


class Charsmap:
    """One table. `data` is as in the file; raises TokenizerError where it is not such a table."""

    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size % 4 or not size or 4 + size >= len(data) or data[-1]:
            raise TokenizerError(f"{_DAMAGED}: its parts do not have the sizes that it says.")
        units = np.frombuffer(data, "<u4", size // 4, 4)  # [units]
        self._texts = data[4 + size :]
        if max(map(len, self._texts.split(b"\0"))) > MAX_REPLACEMENT_BYTES:
            raise TokenizerError(f"{_DAMAGED}: a replacement has more than {MAX_REPLACEMENT_BYTES} bytes.")
        _check_leaves(units, len(self._texts))
        self._units: list[int] = units.tolist()

    def normalized(self, text: str) -> str:
        """The text with its replacements made, from left to right."""
        data = text.encode("utf-8")
        pieces = []
        position = kept = 0
        while position < len(data):
            length, place = self._longest(data, position)
            if length:
                pieces.append(data[kept:position])
                pieces.append(self._texts[place : self._texts.index(0, place)])
                position += length
                kept = position
            else:
                position += _char_bytes(data[position])
        pieces.append(data[kept:])
        # A table could hold half a character; published ones do not.
        return b"".join(pieces).decode("utf-8", "replace")

    def _longest(self, data: bytes, start: int) -> tuple[int, int]:
        """Bytes of the longest match at `start`, 0 for none, and the place of its replacement."""
        units = self._units
        length = place = 0
        node = _offset(units[0])
        for position in range(start, len(data)):
            byte = data[position]
            node ^= byte
            if not byte or node >= len(units):
                break
            unit = units[node]
            if unit & _LABEL != byte:
                break
            node ^= _offset(unit)
            if unit & 0x100:
                length, place = position + 1 - start, units[node] & _VALUE
        return length, place


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)


def _char_bytes(first: int) -> int:
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


def _check_leaves(units: NDArray[np.uint32], text_bytes: int) -> None:
    """Every text that ends in the array has a replacement inside the table."""
    positions = np.arange(len(units), dtype=np.uint64)
    wide = units.astype(np.uint64)
    ends = ((wide & 0x100) != 0) & ((wide >> 31) == 0)
    leaves = (positions ^ ((wide >> 10) << ((wide & 0x200) >> 6)))[ends]
    if (leaves >= len(units)).any():
        raise TokenizerError(f"{_DAMAGED}: it points outside of itself.")
    if ((wide[leaves.astype(np.int64)] & _VALUE) >= text_bytes).any():
        raise TokenizerError(f"{_DAMAGED}: it points to replacements that it does not have.")
