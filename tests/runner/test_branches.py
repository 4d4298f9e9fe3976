"""Branches of a tree of drafts: what is computed for which of them, and where its keys and values go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.core.types import BlockCopy, KVGroupSpec, Retention, SeqSlice, TableUpdate
from headrace.runner.block_tables import BlockTables
from headrace.runner.branches import Branches
from headrace.runner.sampling.output import SampleOutput
from headrace.runner.verification import assumed, follow

PARENTS = (-1, 0, 0, -1, 3, 2)  # main chain 0 1; leaves 1, 4, 5
DRAFTS = (10, 11, 12, 13, 14, 15)


def tree(start: int, known: int = 1, parents: Sequence[int] = PARENTS) -> SeqSlice:
    """A slice of `known` tokens and a tree of drafts."""
    tokens = (*range(known), *DRAFTS[: len(parents)])
    return SeqSlice(7, tokens, start, sample=True, num_draft=len(parents), draft_parents=tuple(parents))


def opened(*specs: KVGroupSpec, count: int = 3, dropped: int = 0) -> tuple[Branches, tuple[BlockTables, ...]]:
    tables = tuple(BlockTables(spec, 2 + count) for spec in specs)
    for table in tables:
        table.apply(1, TableUpdate(0, (5, 6, 7, 8), dropped))
    branches = Branches(tables, 2, count)
    branches.begin()
    return branches, tables


def test_each_draft_is_computed_once_and_written_for_every_leaf_that_it_leads_to() -> None:
    branches, (table,) = opened(KVGroupSpec("full", 40, 4, scratch=6))
    laid = branches.lay_out(tree(start=5), 1)  # positions 5; drafts from 6 on, the third place of block 1
    assert laid.work.tokens == (0, 10, 11, 13, 14, 12, 15)
    assert laid.work.draft_parents == (-1, 0, -1, 2, 0, 4)
    assert laid.rows == (1, 1, 2, 2, 3, 3)
    found = [(part.tokens, part.start, row) for part, row in laid.segments]
    assert found == [((0, 10, 11), 5, 1), ((13, 14), 6, 2), ((12, 15), 7, 3)]
    assert laid.copies == (BlockCopy(0, 6, 40), BlockCopy(0, 6, 42))  # position 4 was there before
    assert laid.writes == ((0, 2, 5), (0, 3, 5), (1, 3, 6))
    assert [table.block_at(2, at) for at in range(3)] == [5, 40, 41]
    assert [table.block_at(3, at) for at in range(3)] == [5, 42, 43]


def test_what_was_accepted_beside_the_main_chain_is_copied_back() -> None:
    branches, _ = opened(KVGroupSpec("full", 40, 4, scratch=6), KVGroupSpec("other", 20, 4, scratch=6))
    laid = branches.lay_out(tree(start=5), 1)
    assert branches.keep(laid, 1, []) == branches.keep(laid, 1, [0, 1]) == []
    assert branches.keep(laid, 1, [2]) == [BlockCopy(0, 40, 6), BlockCopy(1, 20, 6)]
    assert branches.keep(laid, 1, [2, 3]) == [BlockCopy(0, 40, 6), BlockCopy(1, 20, 6)]  # positions 6 and 7
    laid = branches.lay_out(tree(start=6, parents=(-1, -1, 1)), 1)  # position 7, then 8 in the next block
    branch = laid.rows[1]
    assert branch != 1 and laid.rows[2] == branch
    copies = branches.keep(laid, 1, [1, 2])
    assert [copy.target for copy in copies if copy.group == 0] == [6, 7]


def test_a_tree_that_begins_a_block_needs_no_copy() -> None:
    branches, _ = opened(KVGroupSpec("full", 40, 4, scratch=6))
    laid = branches.lay_out(tree(start=7), 1)
    assert laid.copies == () and laid.writes == ((1, 3, 8),)


def test_known_tokens_of_the_slice_are_written_for_all_branches() -> None:
    branches, _ = opened(KVGroupSpec("full", 40, 4, scratch=6))
    laid = branches.lay_out(tree(start=4, known=3, parents=(-1, -1)), 1)
    assert laid.copies == () and laid.writes == ((0, 2, 4), (1, 2, 5), (2, 2, 6))
    assert laid.work.known == 3


def test_windows_drop_blocks_of_branches_too() -> None:
    branches, (table,) = opened(KVGroupSpec("window", 40, 4, Retention.WINDOW, 8, scratch=6), dropped=3)
    laid = branches.lay_out(tree(start=17), 1)
    assert laid.copies[0] == BlockCopy(0, 6, 40)  # logical block 4 is entry 1
    assert [table.block_at(2, at) for at in (3, 4, 5)] == [5, 40, 41]


def test_branches_without_scratch_are_left_out() -> None:
    branches, _ = opened(KVGroupSpec("full", 40, 4, scratch=2), count=1)
    laid = branches.lay_out(tree(start=5), 1)
    assert laid.work.tokens == (0, 10, 11, 13, 14) and laid.work.num_draft == 4
    again = branches.lay_out(tree(start=5), 0)
    assert again.work.tokens == (0, 10, 11) and len(again.segments) == 1
    branches.begin()
    assert branches.lay_out(tree(start=5), 1) == laid


def test_a_branch_that_is_too_deep_is_left_out() -> None:
    branches, _ = opened(KVGroupSpec("full", 40, 4, scratch=1), count=1)
    laid = branches.lay_out(tree(start=6, parents=(-1, -1, 1)), 1)
    assert laid.rows == (1,)


@pytest.mark.parametrize(
    ("sampled", "path"),
    [
        ((10, 12, 9, 9, 9, 15, 20), [0, 1, 5, 6]),
        ((13, 9, 9, 14, 21, 9, 9), [0, 3, 4]),
        ((13, 9, 9, 11, 9, 9, 9), [0, 3]),
        ((99, 10, 10, 10, 10, 10, 10), [0]),
    ],
)
def test_the_accepted_path_is_where_sampling_leads(sampled: tuple[int, ...], path: list[int]) -> None:
    branches, _ = opened(KVGroupSpec("full", 40, 4, scratch=6))
    work = branches.lay_out(tree(start=5), 1).work
    assert assumed(work) == [(), (10,), (10, 11), (13,), (13, 14), (10, 12), (10, 12, 15)]
    samples = SampleOutput([0, *sampled])
    assert follow(work, samples, 1, 7) == [1 + at for at in path]


def test_a_chain_is_accepted_as_far_as_it_is_right() -> None:
    work = SeqSlice(7, (1, 2, 3), 4, sample=True, num_draft=2)
    assert assumed(work) == [(), (2,), (2, 3)]
    assert follow(work, SampleOutput([2, 3, 4]), 0, 3) == [0, 1, 2]
    assert follow(work, SampleOutput([2, 5, 4]), 0, 3) == [0, 1]
    assert follow(SeqSlice(7, (1, 2), 4, sample=False), SampleOutput([]), 0, 0) == []
