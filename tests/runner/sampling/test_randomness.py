"""Philox against published vectors and an independent scalar version; noise and uniforms that are made of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runner.sampling.randomness import MOST_NOISE, halves, noise, philox4x32, uniforms

# Known answers that ship with Random123 (Salmon et al.): counter, key, result of philox4x32 with 10 rounds.
RANDOM123 = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
# Seed, position, token, and the token's word of noise.
PINNED_WORDS = [
    (0, 0, 0, 1713891541),
    (0, 0, 1, 3781805453),
    (0, 0, 4, 2219120097),
    (1, 0, 7, 1839381922),
    (-1, 5, 128_255, 2175582879),
    (2**63 - 1, 10**6, 31_999, 4129871471),
    (42, 2**33, 2, 1875027030),
    (7, 2**62 - 1, 2**31 - 1, 1494444935),
]
# uniforms() of the arguments in test_the_mapping_never_changes.
PINNED_UNIFORMS = [
    "0x1.6e739f289a474p-3",
    "0x1.27bee411e0478p-4",
    "0x1.452000a76d4e8p-4",
    "0x1.af4ec79edfb8cp-3",
    "0x1.042ba0af96bc4p-3",
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def scalar_philox(counter: list[int], key: list[int], bits: int) -> list[int]:
    """Philox4xW with 10 rounds as the paper writes it, for words of 32 or 64 bits."""
    mask = 2**bits - 1
    m0, m1, w0, w1 = {
        32: (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85),
        64: (0xD2E7470EE14C6C93, 0xCA5A826395121157, 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B),
    }[bits]
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(m0 * c0, 2**bits)
        high1, low1 = divmod(m1 * c2, 2**bits)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
    return [c0, c1, c2, c3]


LOW = 2**32 - 1
Halves = tuple[int, int]


def halves_of(value: int) -> Halves:
    return value % 2**32, value % 2**64 >> 32


def scalar_word(seed: int, position: int, token: int) -> int:
    """The word of noise of a token, as the module's docstring defines it."""
    counter = [*halves_of(position), token // 4, 0]
    return scalar_philox(counter, list(halves_of(seed)), 32)[token % 4]


def scalar_noise(seed: int, position: int, token: int) -> float:
    return -math.log(-math.log((scalar_word(seed, position, token) + 0.5) / 2**32))


def column(values: list[int]) -> list[np.ndarray]:
    return [np.array([value], dtype=np.uint64) for value in values]


@pytest.mark.parametrize(("counter", "key", "expected"), RANDOM123)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    c0, c1, c2, c3 = column(words(counter))
    k0, k1 = column(words(key))
    got = philox4x32((c0, c1, c2, c3), (k0, k1))
    assert [word.item() for word in got] == words(expected)


def test_the_scalar_version_is_numpys_philox_at_64_bits() -> None:
    generator = np.random.Philox(counter=[5, 6, 7, 8], key=[11, 12])
    # NumPy counts up before it draws.
    assert generator.random_raw(4).tolist() == scalar_philox([6, 6, 7, 8], [11, 12], 64)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_philox_equals_the_scalar_version_on_many_counters(kind: str) -> None:
    random = np.random.default_rng(3)
    counter = random.integers(0, 2**32, size=(4, 50), dtype=np.uint64)
    key = random.integers(0, 2**32, size=(2, 50), dtype=np.uint64)
    if kind == "numpy":
        got = np.stack(philox4x32(tuple(counter), tuple(key)))  # type: ignore[arg-type]
    else:
        whole = [[torch.from_numpy(row) for row in words.astype(np.int64)] for words in (counter, key)]
        got = torch.stack(philox4x32(*map(tuple, whole))).numpy()  # type: ignore[arg-type]
    for index in range(50):
        expected = scalar_philox(counter[:, index].tolist(), key[:, index].tolist(), 32)
        assert got[:, index].tolist() == expected


@settings(max_examples=60)
@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    position=st.integers(0, 2**62),
    stream=st.integers(1, 2**32 - 1),
    index=st.integers(0, 2**32 - 1),
)
def test_a_uniform_is_52_bits_of_the_block_of_its_seed_position_and_stream(
    seed: int, position: int, stream: int, index: int
) -> None:
    block = scalar_philox([*halves_of(position), index, stream], list(halves_of(seed)), 32)
    bits = (block[0] << 20) | (block[1] >> 12)
    (got,) = uniforms([seed], [position], stream, index)
    assert got == (bits + 0.5) / 2**52
    assert 0.0 < got < 1.0


def test_the_stream_of_the_noise_has_no_uniforms() -> None:
    with pytest.raises(ValueError, match="stream is 0, expected 1 to"):
        uniforms([1], [0], 0)


@settings(max_examples=60)
@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    position=st.integers(0, 2**62),
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5),
)
def test_noise_is_gumbels_of_the_word_of_seed_position_and_token(
    seed: int, position: int, tokens: list[int]
) -> None:
    got = noise([seed], [position], np.array(tokens))
    assert got.shape == (1, len(tokens))
    for token, value in zip(tokens, got[0], strict=True):
        assert value == pytest.approx(scalar_noise(seed, position, token), rel=1e-13, abs=1e-13)


def test_the_mapping_never_changes() -> None:
    # Users' seeds depend on these numbers. A change here breaks every promise of reproducible output.
    for seed, position, token, word in PINNED_WORDS:
        assert scalar_word(seed, position, token) == word
        expected = -math.log(-math.log((word + 0.5) / 2**32))
        assert noise([seed], [position], np.array([token])).item() == pytest.approx(expected, abs=1e-13)
    got = uniforms([0, 1, -1, 2**63 - 1, 42], [0, 0, 5, 10**6, 2**33], 1)
    assert [float(value).hex() for value in got] == PINNED_UNIFORMS


def test_numbers_do_not_depend_on_the_others_of_a_call() -> None:
    seeds, positions, tokens = [3, 1, 4, 1, 5], [9, 2, 6, 5, 3], np.arange(30).reshape(5, 6)
    together = uniforms(seeds, positions, 3)
    alone = [uniforms([seed], [position], 3)[0] for seed, position in zip(seeds, positions, strict=True)]
    assert together.tolist() == alone
    every = noise(seeds, positions, tokens)
    for index, values in enumerate(every):
        one = noise(seeds[index : index + 1], positions[index : index + 1], tokens[index, 2:3])
        assert one.item() == values[2]


def test_the_extremes_stay_finite() -> None:
    for word in (0, 2**32 - 1):
        uniform = (word + 0.5) * 2.0**-32
        assert 0.0 < uniform < 1.0
        assert -3.15 < -math.log(-math.log(uniform)) < MOST_NOISE


def test_streams_and_positions_look_independent() -> None:
    count = 20_000
    positions = list(range(count))
    first = uniforms([7] * count, positions, 1)
    other_stream = uniforms([7] * count, positions, 2)
    other_seed = uniforms([8] * count, positions, 1)
    tokens = np.exp(-np.exp(-noise([7] * count, positions, np.array([0, 1, 5]))))  # back to uniform numbers
    for numbers in (first, other_stream, other_seed, *tokens.T):
        assert abs(numbers.mean() - 0.5) < 4 * math.sqrt(1 / 12 / count)
        counts = np.bincount((numbers * 64).astype(int), minlength=64)
        chi_square = float(((counts - count / 64) ** 2 / (count / 64)).sum())
        assert chi_square < 103.4  # 63 degrees of freedom, p = 0.001
    limit = 4 / math.sqrt(count)
    pairs = [(first, other_stream), (first, other_seed), (first[1:], first[:-1]), (first, tokens[:, 0])]
    pairs += [(tokens[:, 0], tokens[:, 1]), (tokens[:, 1], tokens[:, 2]), (tokens[1:, 0], tokens[:-1, 0])]
    for one, two in pairs:
        assert abs(np.corrcoef(one, two)[0, 1]) < limit


def test_whole_numbers_are_taken_modulo_two_to_the_64() -> None:
    for values in ([-1], [2**64 - 1], np.array([-1])):
        low, high = halves(values)
        assert (low.item(), high.item()) == (LOW, LOW)
