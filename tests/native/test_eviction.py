"""The parts of eviction against their reference, on every instruction set of this CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace import _native
from headrace.ops.reference import eviction as reference
from tests import needs
from tests.instruction_sets import parameters
from tests.native.paged import Cache, aligned, from_bf16, to_bf16

needs.native()

BLOCKS, HEADS, DIM = 12, 2, 32


def cache_of(kind: str, block_size: int, seed: int = 0) -> tuple[Cache, torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    shape = (BLOCKS, HEADS, block_size, DIM)
    key, value = torch.randn(shape, generator=made), torch.randn(shape, generator=made)
    return Cache.of(key, value, kind, padding=float("nan")), key, value


def rows(kind: str, window: int, each: int, seed: int = 1) -> tuple[np.ndarray, torch.Tensor]:
    q = torch.randn(window * each, DIM, generator=torch.Generator().manual_seed(seed)) * 2
    if kind == "f32":
        return q.numpy(), q.view(window, each, DIM)
    stored = to_bf16(q)
    return stored, from_bf16(stored).view(window, each, DIM)


def scales_of(cache: Cache) -> dict[str, np.ndarray]:
    return {name: array for name, array in cache.native.items() if name.endswith("_scales")}


def mass(
    kernels: str,
    cache: Cache,
    q: np.ndarray,
    table: np.ndarray,
    length: int,
    each: int,
    size: int,
    **options: object,
) -> np.ndarray:
    sums = np.zeros(length, dtype=np.float32)
    _native.attention_mass(
        _native.Kernels(kernels), q, cache.native["keys"], cache.native["values"], table, sums, head=1, each=each,
        first=length - len(q) // each, block_size=size, scale=DIM**-0.5, **scales_of(cache), **options,
    )  # fmt: skip
    return sums


@pytest.mark.parametrize("kind", ["f32", "bf16", "i8"])
@pytest.mark.parametrize("kernels", parameters())
def test_the_mass_is_that_of_the_reference(kernels: str, kind: str) -> None:
    table = np.array([3, 0, 7, 9, 1, 11, 5, 2], dtype=np.int32)
    for size, length, window, each in ((16, 100, 7, 3), (8, 57, 5, 2), (32, 33, 33, 1), (48, 300, 2, 5)):
        cache, _, _ = cache_of(kind, size)
        q, plain = rows(kind, window, each)
        keys = cache.plain[0][table.astype(np.int64), 1].reshape(-1, DIM)[:length]
        for soft_cap, sinks in ((0.0, None), (1.5, None), (0.0, np.linspace(-1, 2, each, dtype=np.float32))):
            found = mass(kernels, cache, q, table, length, each, size, soft_cap=soft_cap, learned_sinks=sinks)
            expected = reference.attention_mass(
                plain,
                keys,
                scale=DIM**-0.5,
                soft_cap=soft_cap,
                learned_sinks=None if sinks is None else torch.from_numpy(sinks),
            )
            np.testing.assert_allclose(
                found,
                expected.numpy(),
                rtol=2e-5 if kind == "f32" else 1e-2,
                atol=1e-6 if kind == "f32" else 2e-3,
            )
            if sinks is None:
                assert found.sum() == pytest.approx(window * each, rel=1e-3)


@pytest.mark.parametrize("kernels", parameters())
def test_the_mass_does_not_depend_on_steps_nor_blocks(kernels: str) -> None:
    """Rows one after the other, and other blocks, give the same bits. What nobody wrote may be NaN."""
    length, window, each = 93, 9, 3
    table = np.arange(8, dtype=np.int32)
    key = torch.randn(length, DIM, generator=torch.Generator().manual_seed(5))
    q, _ = rows("bf16", window, each)
    found = []
    for size, cuts in ((16, [9]), (16, [1, 3, 5]), (16, [1] * 9), (32, [2, 7]), (13, [9])):
        shape = (BLOCKS, HEADS, size, DIM)
        stored = torch.full(shape, float("nan"))
        for at in range(length):
            stored[at // size, 1, at % size] = key[at]
        cache = Cache.of(stored, torch.zeros(shape), "bf16", padding=float("nan"))
        sums = np.zeros(length, dtype=np.float32)
        begin = 0
        for count in cuts:
            _native.attention_mass(
                _native.Kernels(kernels), q[begin * each : (begin + count) * each], cache.native["keys"],
                cache.native["values"], table, sums, head=1, each=each, first=length - window + begin,
                block_size=size, scale=0.3,
            )  # fmt: skip
            begin += count
        found.append(sums)
    assert all((sums == found[0]).all() for sums in found)
    assert found[0].min() >= 0 and found[0].sum() == pytest.approx(window * each, rel=1e-3)


@pytest.mark.parametrize("kernels", parameters())
def test_rows_that_are_not_finite_add_nothing(kernels: str) -> None:
    cache, _, _ = cache_of("f32", 16)
    q, plain = rows("f32", 4, 2)
    table = np.arange(4, dtype=np.int32)
    for value in (np.nan, np.inf, 3e38):
        broken = q.copy()
        broken[5, 3] = value
        sums = mass(kernels, cache, broken, table, 50, 2, 16)
        assert np.isfinite(sums).all()
        if value == np.nan:
            keys = cache.plain[0][:4, 1].reshape(-1, DIM)[:50]
            rest = reference.attention_mass(plain, keys, scale=DIM**-0.5).numpy()
            assert (sums <= rest + 1e-5).all() and sums.sum() == pytest.approx(7, rel=1e-4)
    cache.native["keys"][1] = np.nan  # a key that all rows see
    assert not mass(kernels, cache, q, table, 50, 2, 16).any()


@pytest.mark.parametrize("seed", range(6))
def test_what_stays_is_what_the_reference_keeps(seed: int) -> None:
    made = np.random.default_rng(seed)
    for _ in range(30):
        count = int(made.integers(4, 90))
        budget = int(made.integers(2, count))
        sinks = int(made.integers(0, budget))
        recent = int(made.integers(0, budget - sinks + 1))
        sums = made.random(count).astype(np.float32)
        if seed % 2:
            sums = np.round(sums * 4) / 4  # many are equal
        kept = np.empty(budget, dtype=np.int32)
        _native.choose_kept(sums, kept, sinks=sinks, recent=recent)
        expected = reference.choose_kept(torch.from_numpy(sums), budget, sinks, recent)
        assert kept.tolist() == expected.tolist()


def value_at(stored: np.ndarray, size: int, table: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Values [N, Hkv, T * D] of head 1 at places of a table: [P, D]; two positions side by side but for float32."""
    beside = 1 if stored.dtype == np.float32 else 2
    rows = stored.reshape(BLOCKS, HEADS, aligned(size) // beside, DIM, beside).swapaxes(3, 4)
    return rows.reshape(BLOCKS, HEADS, aligned(size), DIM)[table[places // size], 1, places % size]


@pytest.mark.parametrize("kind", ["f32", "bf16", "i8"])
@pytest.mark.parametrize("size", [8, 16, 48])
def test_tokens_move_as_they_are(kind: str, size: int) -> None:
    cache, _, _ = cache_of(kind, size)
    source, target = np.array([4, 1, 8], dtype=np.int32), np.array([2, 10], dtype=np.int32)
    tokens = np.sort(np.random.default_rng(0).choice(3 * size, size + 3, replace=False)).astype(np.int32)
    before = {name: array.copy() for name, array in cache.native.items()}
    _native.move_kept(
        cache.native["keys"], cache.native["values"], source, target, tokens, head=1, head_dim=DIM, block_size=size,
        **scales_of(cache),
    )  # fmt: skip
    places = np.arange(len(tokens))
    found = value_at(cache.native["values"], size, target, places)
    np.testing.assert_array_equal(found, value_at(before["values"], size, source, tokens))
    for name in scales_of(cache):
        moved = cache.native[name][target[places // size], 1, places % size]
        np.testing.assert_array_equal(moved, before[name][source[tokens // size], 1, tokens % size])
    for name, array in cache.native.items():
        others = [block for block in range(BLOCKS) if block not in target]
        np.testing.assert_array_equal(array[others], before[name][others])
        np.testing.assert_array_equal(array[:, 0], before[name][:, 0])
    q, plain = rows(kind, 3, 2)  # keys lie as the kernels read them: what they read tells
    keys = cache.plain[0][source.astype(np.int64)[tokens // size], 1, tokens % size]
    sums = mass(_native.available_kernels()[0], cache, q, target, len(tokens), 2, size)
    expected = reference.attention_mass(plain, keys, scale=DIM**-0.5)
    np.testing.assert_allclose(sums, expected.numpy(), rtol=1e-2, atol=2e-3)


def test_indices_are_checked() -> None:
    cache, _, _ = cache_of("f32", 16)
    q, _ = rows("f32", 2, 1)
    keys, values = cache.native["keys"], cache.native["values"]
    kernels = _native.Kernels(_native.available_kernels()[0])
    options = {"head": 0, "each": 1, "first": 0, "block_size": 16, "scale": 1.0}
    sums = np.zeros(2, dtype=np.float32)
    for table, changed in (
        ([12], {}),
        ([-1], {}),
        ([0], {"first": 15}),
        ([0], {"head": 2}),
        ([0], {"each": 3}),
    ):
        with pytest.raises(ValueError):
            _native.attention_mass(
                kernels, q, keys, values, np.array(table, dtype=np.int32), sums, **{**options, **changed}
            )
    for kept, sinks in ((2, 3), (0, 0), (3, 1)):
        with pytest.raises(ValueError):
            _native.choose_kept(
                np.zeros(3, dtype=np.float32), np.zeros(kept, dtype=np.int32), sinks=sinks, recent=0
            )
