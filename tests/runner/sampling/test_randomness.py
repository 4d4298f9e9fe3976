"""Philox against published vectors and an independent scalar version; the uniforms that are made of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runner.sampling import randomness
from headrace.runner.sampling.randomness import UniformTable, philox4x32, seed_keys, uniforms

# Known answers that ship with Random123 (Salmon et al.): counter, key, result of philox4x32 with 10 rounds.
RANDOM123 = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
# uniforms() of the arguments in test_the_mapping_never_changes.
PINNED = [
    "0x1.989fa35785a72p-2",
    "0x1.c7d00ce1ca141p-1",
    "0x1.b97c138b5da0ap-2",
    "0x1.cb955ef790b12p-2",
    "0x1.37c94da7f6e77p-1",
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


@pytest.mark.parametrize(("counter", "key", "expected"), RANDOM123)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    column = np.array(words(counter), dtype=np.uint64)[:, None]
    got = philox4x32(column, np.array(words(key), dtype=np.uint64)[:, None])
    assert got[:, 0].tolist() == words(expected)


def test_the_scalar_version_is_numpys_philox_at_64_bits() -> None:
    generator = np.random.Philox(counter=[5, 6, 7, 8], key=[11, 12])
    # NumPy counts up before it draws.
    assert generator.random_raw(4).tolist() == scalar_philox([6, 6, 7, 8], [11, 12], 64)


def test_philox_equals_the_scalar_version_on_many_counters() -> None:
    random = np.random.default_rng(3)
    counter = random.integers(0, 2**32, size=(4, 50), dtype=np.uint64)
    key = random.integers(0, 2**32, size=(2, 50), dtype=np.uint64)
    got = philox4x32(counter, key)
    for column in range(50):
        expected = scalar_philox(counter[:, column].tolist(), key[:, column].tolist(), 32)
        assert got[:, column].tolist() == expected


@settings(max_examples=60)
@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    position=st.integers(0, 2**40),
    stream=st.integers(0, 2**32 - 1),
)
def test_a_uniform_is_52_bits_of_the_block_of_its_seed_position_and_stream(
    seed: int, position: int, stream: int
) -> None:
    low = 2**32 - 1
    wide = seed % 2**64
    block = scalar_philox(
        [position & low, position >> 32, stream, 0],
        [wide & low, wide >> 32],
        32,
    )
    bits = (block[0] << 20) | (block[1] >> 12)
    (got,) = uniforms([seed], [position], stream)
    assert got == (bits + 0.5) / 2**52
    assert 0.0 < got < 1.0


def test_the_mapping_never_changes() -> None:
    # Users' seeds depend on these numbers. A change here breaks every promise of reproducible output.
    got = uniforms([0, 1, -1, 2**63 - 1, 42], [0, 0, 5, 10**6, 2**33])
    assert [float(value).hex() for value in got] == PINNED


def test_a_number_does_not_depend_on_the_others_of_a_call() -> None:
    seeds, positions = [3, 1, 4, 1, 5], [9, 2, 6, 5, 3]
    together = uniforms(seeds, positions)
    alone = [uniforms([seed], [position])[0] for seed, position in zip(seeds, positions, strict=True)]
    assert together.tolist() == alone


@pytest.mark.parametrize("word", [0, 2**32 - 1])
def test_the_extremes_stay_inside_the_open_interval(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    block = np.full((4, 1), word, dtype=np.uint64)
    monkeypatch.setattr(randomness, "philox4x32", lambda counter, key: block)
    (got,) = uniforms([0], [0])
    assert 0.0 < got < 1.0


def test_streams_and_positions_look_independent() -> None:
    count = 20_000
    positions = list(range(count))
    first = uniforms([7] * count, positions, 0)
    other_stream = uniforms([7] * count, positions, 1)
    other_seed = uniforms([8] * count, positions, 0)
    for numbers in (first, other_stream, other_seed):
        assert abs(numbers.mean() - 0.5) < 4 * math.sqrt(1 / 12 / count)
        counts = np.bincount((numbers * 64).astype(int), minlength=64)
        chi_square = float(((counts - count / 64) ** 2 / (count / 64)).sum())
        assert chi_square < 103.4  # 63 degrees of freedom, p = 0.001
    limit = 4 / math.sqrt(count)
    for one, two in ((first, other_stream), (first, other_seed), (first[1:], first[:-1])):
        assert abs(np.corrcoef(one, two)[0, 1]) < limit


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 60), min_size=3, max_size=3), min_size=1, max_size=12))
def test_a_table_returns_the_same_in_any_order(calls: list[list[int]]) -> None:
    seeds = [5, 5, -9]
    table = UniformTable(seeds)
    for positions in calls:
        assert table.at(positions).tolist() == uniforms(seeds, positions).tolist()


def test_keys_take_a_seed_modulo_two_to_the_64() -> None:
    assert seed_keys([-1]).tolist() == seed_keys([2**64 - 1]).tolist() == [[2**32 - 1], [2**32 - 1]]
