"""Steps of one token a sequence that are made faster are those that `pack` makes."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from headrace.core.types import KVGroupSpec, Retention, SeqSlice, TableUpdate
from headrace.runner.block_tables import BlockTables
from headrace.runner.packing import advance, pack, pack_next
from headrace.runner.step import GroupTables, Step

STARTS, ROWS = (5, 13, 2), (2, 0, 1)


def tables() -> list[BlockTables]:
    full = BlockTables(KVGroupSpec("full", 20, 4, Retention.FULL), 3)
    window = BlockTables(KVGroupSpec("window", 20, 4, Retention.WINDOW, 6), 3)
    for row, blocks in enumerate([(9, 4, 7, 1, 12), (3, 6), (8, 2, 5)]):
        full.apply(row, TableUpdate(0, blocks, 0))
    for row, (blocks, dropped) in enumerate([((1, 7, 9), 2), ((4, 2), 0), ((8, 3, 5), 0)]):
        window.apply(row, TableUpdate(0, blocks, dropped))
    return [full, window]


def assert_same(step: Step, expected: Step) -> None:
    for one in fields(Step):
        if one.name not in ("ids", "groups"):
            np.testing.assert_array_equal(getattr(step, one.name), getattr(expected, one.name), one.name)
    for group, other in zip(step.groups, expected.groups, strict=True):
        for one in fields(GroupTables):
            np.testing.assert_array_equal(getattr(group, one.name), getattr(other, one.name), one.name)


def test_the_next_tokens_are_packed_as_slices_are() -> None:
    own = tables()
    step = pack_next(STARTS, ROWS, own, logits=True)
    for ahead in range(5):  # over the borders of blocks
        work = [SeqSlice(at, (1,), start + ahead, sample=False) for at, start in enumerate(STARTS)]
        assert_same(step, pack(work, ROWS, own, range(3)))
        assert_same(pack_next([one.start for one in work], ROWS, own), pack(work, ROWS, own, (), (0, 1, 2)))
        advance(step, ROWS, own)
