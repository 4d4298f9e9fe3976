"""Block tables of all sequences as one array a KV group, kept current by the updates of step plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.types import KVGroupSpec, Retention, TableUpdate
from headrace.runner.step import GroupTables

FIRST_BLOCKS = 64


def all_tables(groups: Sequence[KVGroupSpec], rows: int) -> tuple[BlockTables | None, ...]:
    """The tables of each group; None for recurrent states, whose slots a slice names."""
    return tuple(None if group.is_state else BlockTables(group, rows) for group in groups)


class BlockTables:
    """One row a sequence, one column a live block; see core.types.TableUpdate for the order of live blocks."""

    def __init__(self, group: KVGroupSpec, max_seqs: int) -> None:
        self.group = group
        self._table: NDArray[np.int32] = np.zeros((max_seqs, FIRST_BLOCKS), dtype=np.int32)
        self._length: NDArray[np.int32] = np.zeros(max_seqs, dtype=np.int32)
        self._dropped: NDArray[np.int32] = np.zeros(max_seqs, dtype=np.int32)
        self._evicted: NDArray[np.int32] = np.zeros(max_seqs, dtype=np.int32)
        self._evicts = False  # some sequence has evicted tokens, or had

    def apply(self, row: int, update: TableUpdate) -> None:
        """Bring one sequence's row up to date. An update from entry 0 on replaces the whole row."""
        first, blocks = update.first, update.blocks
        if first:
            self._shift(row, update.dropped - int(self._dropped[row]))
        end = first + len(blocks)
        self._widen(end)
        self._table[row, first:end] = blocks
        self._length[row] = end
        self._dropped[row] = update.dropped
        self._evicted[row] = update.evicted
        self._evicts = self._evicts or update.evicted > 0

    def clear(self, row: int) -> None:
        self._length[row] = 0
        self._dropped[row] = 0
        self._evicted[row] = 0

    def branch(self, row: int, target: int, logical: int, blocks: Sequence[int]) -> None:
        """Let row `target` be a copy of a sequence's row with `blocks` from logical block `logical` on."""
        entry = self._entry(row, logical)
        end = entry + len(blocks)
        self._widen(end)
        self._table[target, :entry] = self._table[row, :entry]
        self._table[target, entry:end] = blocks
        self._length[target] = end
        self._dropped[target] = self._dropped[row]

    def block_at(self, row: int, logical: int) -> int:
        """The block of a row that holds logical block `logical`."""
        return int(self._table[row, self._entry(row, logical)])

    def tables(
        self, rows: NDArray[np.int64], row_of_token: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> GroupTables:
        """Tables of the sequences in `rows` [S], and the slot of every token: its row [T] and position [T]."""
        width = int(self._length[rows].max())
        return GroupTables(
            self._table[rows, :width],
            self._dropped[rows],
            self.slots(row_of_token, positions),
            self.group.sink_blocks,
            self.group.block_size,
            evicted=self._evicted[rows] if self._evicts else None,
            evicts=self.group.retention is Retention.FULL,
        )

    def slots(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where positions [N] of rows [N] are stored."""
        size, sink_blocks = self.group.block_size, self.group.sink_blocks
        if self._evicts:
            positions = positions - self._evicted[rows]
        logical = positions // size
        entry = logical
        if self.group.window is not None:  # only then do blocks drop out
            entry = np.where(logical < sink_blocks, logical, logical - self._dropped[rows])
        found: NDArray[np.int64] = self._table[rows, entry].astype(np.int64) * size + (
            positions - logical * size
        )
        return found

    def _entry(self, row: int, logical: int) -> int:
        return logical if logical < self.group.sink_blocks else logical - int(self._dropped[row])

    def _widen(self, width: int) -> None:
        if width > self._table.shape[1]:
            more = max(width, 2 * self._table.shape[1]) - self._table.shape[1]
            self._table = np.pad(self._table, ((0, 0), (0, more)))

    def _shift(self, row: int, count: int) -> None:
        """Close the gap that `count` dropped blocks leave after the sinks."""
        if count:
            first, length = self.group.sink_blocks, int(self._length[row])
            kept = self._table[row, first + count : length].copy()
            self._table[row, first : first + len(kept)] = kept
