"""The block pool against a plain list."""

from __future__ import annotations

from random import Random

import pytest

from headrace.core.block_pool import BlockPool


def take(pool: BlockPool, count: int) -> list[int]:
    return [pool.allocate() for _ in range(count)]


def links(pool: BlockPool, end: int) -> tuple[list[int], list[int]]:
    """The ring from the sentinel `end` on, forwards and backwards."""
    rings = []
    for neighbours in (pool._next, pool._previous):
        ring, block = [], neighbours[end]
        while block != end:
            ring.append(block)
            block = neighbours[block]
        rings.append(ring)
    return rings[0], rings[1]


def test_blocks_are_allocated_in_order() -> None:
    pool = BlockPool(3)
    assert take(pool, 3) == [0, 1, 2]
    assert pool.num_free == 0
    with pytest.raises(IndexError, match="no free KV block"):
        pool.allocate()


def test_a_pool_needs_a_block() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


def test_reusable_blocks_are_allocated_last_in_lru_order() -> None:
    pool = BlockPool(5)
    take(pool, 4)
    pool.release(2, reusable=True)
    pool.release(0, reusable=True)
    pool.release(3, reusable=False)
    assert pool.free_order() == [3, 4, 2, 0]


def test_on_evict_runs_before_a_block_is_reallocated() -> None:
    evicted: list[tuple[int, int]] = []
    pool = BlockPool(2, lambda block: evicted.append((block, pool.references(block))))
    take(pool, 2)
    pool.release(1, reusable=True)
    pool.allocate()
    assert evicted == [(0, 0), (1, 0), (1, 0)]


def test_sharing_a_free_block_takes_it_out_of_the_middle_of_the_list() -> None:
    pool = BlockPool(4)
    pool.share(2)
    assert pool.free_order() == [0, 1, 3]
    pool.share(2)
    assert pool.references(2) == 2
    pool.release(2, reusable=True)
    assert pool.free_order() == [0, 1, 3]
    pool.release(2, reusable=True)
    assert pool.free_order() == [0, 1, 3, 2]


@pytest.mark.parametrize("reusable", [True, False])
def test_double_release_raises_and_changes_nothing(reusable: bool) -> None:
    pool = BlockPool(2)
    pool.allocate()
    pool.release(0, reusable=reusable)
    before = pool.free_order()
    with pytest.raises(ValueError, match="block 0 was released more often than it was taken"):
        pool.release(0, reusable=reusable)
    assert pool.free_order() == before and pool.references(0) == 0 and pool.num_free == 2


@pytest.mark.parametrize("seed", range(5))
def test_random_use_equals_plain_lists(seed: int) -> None:
    """One of free blocks, and one of free blocks that are pinned."""
    rng, blocks = Random(seed), 12
    pool, references, broken = BlockPool(blocks), [0] * blocks, 0
    free: tuple[list[int], list[int]] = (list(range(blocks)), [])
    pinned: set[int] = set()
    for _ in range(3000):
        block, roll = rng.randrange(blocks), rng.random()
        if roll < 0.35 and (free[0] or free[1]):
            expected = (free[0] or free[1]).pop(0)
            broken += expected in pinned
            pinned.discard(expected)
            assert pool.allocate() == expected
            references[expected] = 1
        elif roll < 0.55:
            pool.share(block)
            references[block] += 1
            if references[block] == 1:
                free[block in pinned].remove(block)
        elif roll < 0.7:
            if not references[block]:
                free[block in pinned].remove(block)
            keep = rng.random() < 0.5
            (pool.pin if keep else pool.unpin)(block)
            (pinned.add if keep else pinned.discard)(block)
            if not references[block]:
                free[keep].append(block)
        elif references[block]:
            reusable = rng.random() < 0.5
            pool.release(block, reusable=reusable)
            references[block] -= 1
            if not references[block]:
                where = free[block in pinned]
                where.insert(len(where) if reusable else 0, block)
        for end, expected_order in zip((blocks, blocks + 1), free, strict=True):
            forwards, backwards = links(pool, end)
            assert forwards == backwards[::-1] == expected_order
        assert pool.free_order() == free[0] + free[1]
        assert pool.num_free == len(free[0]) + len(free[1]) and pool.num_pinned == len(pinned)
        assert [pool.references(b) for b in range(blocks)] == references
    assert broken > 1


def test_pinned_blocks_are_allocated_last() -> None:
    pool = BlockPool(4)
    take(pool, 4)
    pool.pin(1)
    for block in (1, 0, 2, 3):
        pool.release(block, reusable=True)
    pool.pin(2)  # while it is free
    assert pool.free_order() == [0, 3, 1, 2]
    pool.unpin(1)
    assert pool.free_order() == [0, 3, 1, 2] and pool.num_pinned == 1
    assert take(pool, 4) == [0, 3, 1, 2] and pool.num_pinned == 0


class Counting(list[int]):
    """A list that counts reads and writes of its items."""

    def __init__(self, items: list[int]) -> None:
        super().__init__(items)
        self.touched = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        self.touched += 1
        return super().__getitem__(index)

    def __setitem__(self, index, value):  # type: ignore[no-untyped-def]
        self.touched += 1
        super().__setitem__(index, value)


def test_every_operation_is_constant_time() -> None:
    touched = []
    for blocks in (8, 8000):
        pool = BlockPool(blocks)
        pool._next, pool._previous = Counting(pool._next), Counting(pool._previous)
        for block in take(pool, 6):
            pool.release(block, reusable=block % 2 == 0)
            pool.share(block)
            pool.release(block, reusable=True)
        touched.append(pool._next.touched + pool._previous.touched)
    assert touched[0] == touched[1]
