"""Counter-based randomness: a random number is a pure function of (seed, position, stream), with no state.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
2011): the seed is its 64-bit key; the position and the stream are its 128-bit counter. So a sequence draws
the same numbers in any batch, in any order and after a restart. The mapping is part of the behaviour that
users rely on when they set a seed: tests pin it, and it must never change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # 32-bit words, each in 64 bits so that a product of two fits
Uniforms = NDArray[np.float64]

_ROUNDS = 10
_AHEAD = 16
_MASK = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)  # [2, 1]
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)  # [2, 1]
_SCHEDULE = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None] * _WEYL  # [rounds, 2, 1]
_LOW_64 = 2**64 - 1

SAMPLE_STREAM = 0  # the draw of an output token; other draws at the same position take other streams


def philox4x32(counter: Words, key: Words) -> Words:
    """Ten rounds of Philox4x32 on N counters at once.

    counter [4, N] and key [2, N] hold 32-bit words; returns [4, N].
    """
    even, odd = counter[0::2], counter[1::2]  # [2, N]: words 0 and 2, words 1 and 3
    for round_key in (key + _SCHEDULE) & _MASK:  # [2, N]
        product = even * _MULTIPLIERS
        even = (product >> _HALF)[::-1] ^ odd ^ round_key
        odd = (product & _MASK)[::-1]
    return np.stack((even[0], odd[0], even[1], odd[1]))


def seed_keys(seeds: Sequence[int]) -> Words:
    """Philox keys [2, N] of N seeds; a seed is any whole number, taken modulo 2**64."""
    wide = np.array([seed & _LOW_64 for seed in seeds], dtype=np.uint64)
    return np.stack((wide & _MASK, wide >> _HALF))


def keyed_uniforms(
    keys: Words, positions: Sequence[int] | NDArray[np.int64], stream: int = SAMPLE_STREAM
) -> Uniforms:
    """Uniform numbers [N] in the open interval (0, 1), one per (key, position, stream).

    keys [2, N] come from `seed_keys`; positions are in [0, 2**64), stream in [0, 2**32). Each number is an
    odd multiple of 2**-53, so 0 and 1 never occur.
    """
    where = np.array(positions, dtype=np.uint64)  # [N]
    counter = np.empty((4, where.size), dtype=np.uint64)
    counter[0] = where & _MASK
    counter[1] = where >> _HALF
    counter[2] = stream
    counter[3] = 0
    words = philox4x32(counter, keys)
    bits = (words[0] << np.uint64(20)) | (words[1] >> np.uint64(12))  # 52 random bits
    numbers: Uniforms = (bits.astype(np.float64) + 0.5) * 2.0**-52
    return numbers


class UniformTable:
    """The uniform numbers of N sequences, computed for some positions ahead, as most of a call's cost is fixed.

    A cache of a pure function: what `at` returns does not depend on earlier calls.
    """

    __slots__ = ("_first", "_keys", "_rows", "_table")

    def __init__(self, seeds: Sequence[int]) -> None:
        self._keys = seed_keys(seeds)
        self._rows = np.arange(len(seeds))
        self._first = np.zeros(len(seeds), dtype=np.int64)  # [N]: position of the table's first row
        self._table: Uniforms = np.empty((0, len(seeds)), dtype=np.float64)  # [ahead, N]

    def at(self, positions: Sequence[int]) -> Uniforms:
        """One number [N] per sequence, at its position; positions are in [0, 2**62)."""
        first = np.array(positions, dtype=np.int64)
        offsets = first - self._first
        if offsets.min() < 0 or offsets.max() >= len(self._table):
            self._first = first
            ahead = (first + np.arange(_AHEAD)[:, None]).ravel()  # [ahead * N]
            self._table = keyed_uniforms(np.tile(self._keys, _AHEAD), ahead).reshape(_AHEAD, -1)
            offsets = first - first
        numbers: Uniforms = self._table[offsets, self._rows]
        return numbers


def uniforms(seeds: Sequence[int], positions: Sequence[int], stream: int = SAMPLE_STREAM) -> Uniforms:
    """Uniform numbers [N] in (0, 1), one per (seed, position, stream); see `keyed_uniforms`."""
    return keyed_uniforms(seed_keys(seeds), positions, stream)
