"""Codes out of words and bytes, against numbers of any size in plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.quant.unpack import fields_of_words, nibbles, stream_of_words


@pytest.mark.parametrize("bits", range(1, 9))
def test_fields(bits: int) -> None:
    draw = np.random.default_rng(bits)
    words = draw.integers(-(2**31), 2**31, (5, 7)).astype(np.int32)
    each = 32 // bits
    count = 7 * each - 1
    codes = fields_of_words(words, bits, count)
    assert codes.shape == (5, count) and codes.flags.c_contiguous
    for row in range(5):
        for place in range(count):
            assert codes[row, place] == (int(words[row, place // each]) >> bits * (place % each)) % (
                1 << bits
            )


@pytest.mark.parametrize("bits", range(1, 9))
def test_streams(bits: int) -> None:
    words = np.random.default_rng(bits).integers(-(2**31), 2**31, (3, 6)).astype(np.int32)
    count = 192 // bits - 1
    codes = stream_of_words(words, bits, count)
    for row in range(3):
        number = int.from_bytes(words[row].tobytes(), "little")
        assert codes[row].tolist() == [number >> bits * place & (1 << bits) - 1 for place in range(count)]


def test_words_need_not_lie_together() -> None:
    words = np.random.default_rng(0).integers(0, 2**31, (6, 4)).astype(np.int32)
    for bits in (3, 4, 5):
        made = fields_of_words(words.T, bits, 9)
        assert np.array_equal(made, fields_of_words(np.ascontiguousarray(words.T), bits, 9))


@pytest.mark.parametrize("high_first", [False, True])
def test_nibbles(high_first: bool) -> None:
    packed = np.array([[0x12, 0xAB]], dtype=np.uint8)
    assert nibbles(packed, high_first=high_first).tolist() == (
        [[1, 2, 10, 11]] if high_first else [[2, 1, 11, 10]]
    )
