"""Block tables of all sequences as one array a KV group, kept current by the updates of step plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.types import KVGroupSpec, TableUpdate
from headrace.runner.step import GroupTables

FIRST_BLOCKS = 64


def all_tables(groups: Sequence[KVGroupSpec], max_seqs: int) -> tuple[BlockTables | None, ...]:
    """The tables of each group; None for recurrent states, whose slots a slice names."""
    return tuple(None if group.is_state else BlockTables(group, max_seqs) for group in groups)


class BlockTables:
    """One row a sequence, one column a live block; see core.types.TableUpdate for the order of live blocks."""

    def __init__(self, group: KVGroupSpec, max_seqs: int) -> None:
        self._group = group
        self._table: NDArray[np.int32] = np.zeros((max_seqs, FIRST_BLOCKS), dtype=np.int32)
        self._length: NDArray[np.int32] = np.zeros(max_seqs, dtype=np.int32)
        self._dropped: NDArray[np.int32] = np.zeros(max_seqs, dtype=np.int32)

    def apply(self, row: int, update: TableUpdate) -> None:
        """Bring one sequence's row up to date. An update from entry 0 on replaces the whole row."""
        first, blocks = update.first, update.blocks
        if first:
            self._shift(row, update.dropped - int(self._dropped[row]))
        end = first + len(blocks)
        if end > self._table.shape[1]:
            more = max(end, 2 * self._table.shape[1]) - self._table.shape[1]
            self._table = np.pad(self._table, ((0, 0), (0, more)))
        self._table[row, first:end] = blocks
        self._length[row] = end
        self._dropped[row] = update.dropped

    def clear(self, row: int) -> None:
        self._length[row] = 0
        self._dropped[row] = 0

    def tables(
        self, rows: NDArray[np.int64], row_of_token: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> GroupTables:
        """Tables of the sequences in `rows` [S], and the slot of every token: its row [T] and position [T]."""
        size, sink_blocks = self._group.block_size, self._group.sink_blocks
        logical = positions // size
        entry = logical
        if self._group.window is not None:  # only then do blocks drop out
            entry = np.where(logical < sink_blocks, logical, logical - self._dropped[row_of_token])
        slots = self._table[row_of_token, entry].astype(np.int64) * size + (positions - logical * size)
        width = int(self._length[rows].max())
        return GroupTables(self._table[rows, :width], self._dropped[rows], slots, sink_blocks, size)

    def _shift(self, row: int, count: int) -> None:
        """Close the gap that `count` dropped blocks leave after the sinks."""
        if count:
            first, length = self._group.sink_blocks, int(self._length[row])
            kept = self._table[row, first + count : length].copy()
            self._table[row, first : first + len(kept)] = kept
