"""Slices of a step plan packed into one ragged batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.record import record
from headrace.core.types import SeqSlice
from headrace.runner.block_tables import BlockTables
from headrace.runner.step import NOWHERE, GroupTables, Observed, StateTables, Step


@record
class Rows:
    """Which rows of the logits belong to slice s: first those that score prompt tokens, then those to sample from."""

    first: int
    num_prompt: int
    num_sample: int


def logits_rows(slices: Sequence[SeqSlice], scored: Sequence[int]) -> tuple[list[int], list[Rows]]:
    """Token indices whose logits are computed, and which of them belong to each slice.

    `scored[s]` is how many leading positions of slice s predict a prompt token whose log-probability is requested.
    """
    selected: list[int] = []
    rows = []
    offset = 0
    for work, num_prompt in zip(slices, scored, strict=True):
        end = offset + len(work.tokens)
        num_sample = work.num_draft + 1 if work.sample else 0
        rows.append(Rows(len(selected), num_prompt, num_sample))
        selected += range(offset, offset + num_prompt)
        selected += range(end - num_sample, end)
        offset = end
    return selected, rows


def pack(
    slices: Sequence[SeqSlice],
    table_rows: Sequence[int],
    tables: Sequence[BlockTables | None],
    selected: Sequence[int],
    pooled: Sequence[int] = (),
    writes: Sequence[tuple[int, int, int]] = (),
) -> Step:
    """The ragged batch of S slices with T tokens; slice s reads and writes through row `table_rows[s]`.

    A table is None for recurrent states, whose slots a slice names. `selected` and `pooled` are the tokens whose logits
    and whose final hidden states are needed. For each (token, row, position) of `writes` the token's key and value also
    go where that row has that position.
    """
    count = len(slices)
    starts = np.array([work.start for work in slices], dtype=np.int64)
    rows = np.array(table_rows, dtype=np.int64)
    ids = np.array([token for work in slices for token in work.tokens], dtype=np.int64)
    if len(ids) == count:  # decoding: one token each
        cu_q = np.arange(count + 1, dtype=np.int32)
        positions, row_of_token, ends = starts, rows, starts + 1
    else:
        counts = np.array([len(work.tokens) for work in slices], dtype=np.int64)
        cu_q = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(counts, out=cu_q[1:])
        positions = np.repeat(starts - cu_q[:-1], counts) + np.arange(len(ids))  # [T]
        row_of_token = np.repeat(rows, counts)  # [T]
        ends = starts + counts
    groups = tuple(
        _states(slices, group) if table is None else table.tables(rows, row_of_token, positions)
        for group, table in enumerate(tables)
    )
    for index, work in enumerate(slices):
        if work.num_stored:
            for group in groups:
                if isinstance(group, StateTables):
                    continue
                group.slots[cu_q[index] : cu_q[index] + work.num_stored] = NOWHERE
    return Step(
        ids=ids,
        positions=positions,
        cu_q=cu_q,
        kv_lens=ends.astype(np.int32),
        groups=groups,
        logits_rows=np.array(selected, dtype=np.int64),
        hidden_rows=np.array(pooled, dtype=np.int64) if pooled else None,
        more=_write_more(writes, tables, groups, len(ids)) if writes else None,
        observed=tuple(
            Observed(seq, table_rows[seq], work.observation)
            for seq, work in enumerate(slices)
            if work.observation is not None
        ),
    )


def _write_more(
    writes: Sequence[tuple[int, int, int]],
    tables: Sequence[BlockTables | None],
    groups: Sequence[GroupTables | StateTables],
    count: int,
) -> NDArray[np.int32]:
    """Set `more_slots` of the groups; gives `Step.more` for so many tokens."""
    tokens, rows, positions = np.array(sorted(writes), dtype=np.int64).T
    for table, group in zip(tables, groups, strict=True):
        if table is not None and isinstance(group, GroupTables):
            group.more_slots = table.slots(rows, positions)
    return np.searchsorted(tokens, np.arange(count + 1)).astype(np.int32)


def pack_next(
    positions: Sequence[int],
    table_rows: Sequence[int],
    tables: Sequence[BlockTables | None],
    *,
    logits: bool = False,
) -> Step:
    """One token each of S sequences, at these positions; the ids are left out. Needed are their hidden states, or their
    `logits`. As `pack` does it, but faster; the groups must be of layers that attend."""
    starts, rows = np.array(positions, dtype=np.int64), np.array(table_rows, dtype=np.int64)
    every = np.arange(len(starts) + 1)
    return Step(
        ids=every[:-1],
        positions=starts,
        cu_q=every.astype(np.int32),
        kv_lens=(starts + 1).astype(np.int32),
        groups=tuple(table.tables(rows, rows, starts) for table in tables if table is not None),
        logits_rows=every[:-1] if logits else every[:0],
        hidden_rows=None if logits else every[:-1],
    )


def advance(step: Step, table_rows: Sequence[int], tables: Sequence[BlockTables | None]) -> None:
    """Let a step of `pack_next` be that of each sequence's next token; the tables must be as they were."""
    rows = np.array(table_rows, dtype=np.int64)
    step.positions = step.positions + 1
    step.kv_lens = step.kv_lens + np.int32(1)
    for group, table in zip(step.groups, (one for one in tables if one is not None), strict=True):
        assert isinstance(group, GroupTables)
        group.slots = table.slots(rows, step.positions)


def _states(slices: Sequence[SeqSlice], group: int) -> StateTables:
    moves = [work.states[group] for work in slices]
    return StateTables(tuple(one for one in moves if one is not None))
