"""Counter-based randomness: a random number is a pure function of a seed, a position and what it is for, with no state.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
2011). The seed is its 64-bit key. Its 128-bit counter is (position low, position high, index, stream), four words of 32
bits; a result has four more. So a sequence draws the same numbers in any batch, in any order and after a restart. The
mapping is part of the behaviour that users rely on when they set a seed: tests pin it, and it must never change.

The noise of output tokens is stream 0: block t // 4 is the index, and token t takes word t % 4. Other draws at the same
position take other streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # 32-bit words, each in 64 bits so that a product of two fits
Array = TypeVar("Array")  # of NumPy or torch, which is not imported here
Quad = tuple[Array, Array, Array, Array]

_ROUNDS = 10
_MASK = 0xFFFF_FFFF
_EVEN, _ODD = 0xD2511F53, 0xCD9E8D57  # multipliers
_WEYL_LOW, _WEYL_HIGH = 0x9E3779B9, 0xBB67AE85
_LOW_64 = 2**64 - 1
_PIECE = 4096

NOISE_STREAM = 0
BLOCK = 4
"""Tokens whose noise comes of one counter."""
MOST_NOISE = 22.874
"""Above the noise of any word, 33 log 2 at most."""


def philox4x32(counter: Quad[Array], key: tuple[Array, Array]) -> Quad[Array]:
    """Ten rounds of Philox4x32 on counters and keys that are broadcast against one another.

    Each array, of NumPy (uint64 or int64) or torch (int64), holds one 32-bit word of every counter, key or result.
    """
    c0: Any
    c1: Any
    c2: Any
    c3: Any
    k0: Any
    k1: Any
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(_ROUNDS):
        even: Any = c0 * _EVEN  # in int64 it may wrap around, which leaves both halves as they are
        odd: Any = c2 * _ODD
        c0, c1 = (odd >> 32 & _MASK) ^ c1 ^ k0, odd & _MASK
        c2, c3 = (even >> 32 & _MASK) ^ c3 ^ k1, even & _MASK
        k0, k1 = (k0 + _WEYL_LOW) & _MASK, (k1 + _WEYL_HIGH) & _MASK
    return c0, c1, c2, c3


def halves(values: Sequence[int] | NDArray[np.int64]) -> tuple[Words, Words]:
    """Low and high words [N] of whole numbers, taken modulo 2**64."""
    if isinstance(values, np.ndarray):
        wide = values.astype(np.uint64)
    else:
        wide = np.array([value & _LOW_64 for value in values], dtype=np.uint64)
    return wide & np.uint64(_MASK), wide >> np.uint64(32)


def noise(
    seeds: Sequence[int], positions: Sequence[int] | NDArray[np.int64], tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Gumbel noise [N, W] of tokens [N, W] or [W] at N output positions: the plain formula, for any seed.

    u = (word + 0.5) / 2**32 and the noise is -log(-log(u)): from -3.14 to MOST_NOISE. The token with the largest sum of
    logit / temperature and noise is distributed as softmax(logits / temperature) (Gumbel 1954).
    """
    low, high = (half[:, None] for half in halves(positions))
    key = tuple(half[:, None] for half in halves(seeds))
    ids = np.atleast_2d(tokens).astype(np.uint64)
    zero = np.zeros((1, 1), dtype=np.uint64)
    words = np.stack(
        np.broadcast_arrays(*philox4x32((low, high, ids // np.uint64(BLOCK), zero), (key[0], key[1])))
    )
    (chosen,) = np.take_along_axis(
        words, (ids % np.uint64(BLOCK)).astype(np.int64)[None] + zero.astype(np.int64), 0
    )
    made: NDArray[np.float64] = -np.log(-np.log((chosen.astype(np.float64) + 0.5) * 2.0**-32))
    return made


def block_noise(
    words: NDArray[np.int64], rows: NDArray[np.int64], blocks: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Noise [M, 4] of the tokens of block blocks[i] of row rows[i]; words [4, N]: seed and position, low halves first.

    As `noise`, in pieces that stay in a core's cache.
    """
    made = np.empty((len(blocks), BLOCK))
    for start in range(0, len(blocks), _PIECE):
        part = slice(start, start + _PIECE)
        seed_low, seed_high, low, high = words[:, rows[part]]
        index: Any = blocks[part]
        np.stack(
            philox4x32((low, high, index, np.zeros_like(index)), (seed_low, seed_high)), -1, out=made[part]
        )
        values = made[part]
        values += 0.5
        values *= 2.0**-32
        for _ in range(2):
            np.log(values, out=values)
            np.negative(values, out=values)
    return made


def uniforms(
    seeds: Sequence[int], positions: Sequence[int] | NDArray[np.int64], stream: int, index: int = 0
) -> NDArray[np.float64]:
    """Uniform numbers [N] in the open interval (0, 1), one per (seed, position, stream, index).

    Positions are in [0, 2**64), stream in [1, 2**32), index in [0, 2**32). Each number is an odd multiple of 2**-53, so
    0 and 1 never occur.
    """
    if not 1 <= stream <= _MASK:
        raise ValueError(
            f"stream is {stream}, expected 1 to {_MASK}: stream {NOISE_STREAM} is the noise of tokens"
        )
    low, high = halves(positions)
    words = philox4x32((low, high, np.full_like(low, index), np.full_like(low, stream)), halves(seeds))
    bits = (words[0] << np.uint64(20)) | (words[1] >> np.uint64(12))  # 52 random bits
    numbers: NDArray[np.float64] = (bits.astype(np.float64) + 0.5) * 2.0**-52
    return numbers
