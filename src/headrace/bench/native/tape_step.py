"""The arrays of one step as a tape takes them, for tapes that are built to be measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK_SIZE = 32
VOCAB_SIZE = 64


@dataclass(frozen=True, slots=True)
class TapeStep:
    """The arrays of one step whose sequences have blocks of their own, one KV group."""

    tokens: int
    seqs: int
    num_blocks: int
    arrays: tuple[Any, ...]
    tables: tuple[Any, ...]

    @classmethod
    def of(cls, lengths: list[int], starts: list[int]) -> TapeStep:
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        width = -(-max(ends) // BLOCK_SIZE)
        tables = np.arange(len(lengths) * width, dtype=np.int32).reshape(len(lengths), width)
        positions = np.concatenate(
            [np.arange(start, end, dtype=np.int64) for start, end in zip(starts, ends, strict=True)]
        )
        owners = np.repeat(np.arange(len(lengths)), lengths)
        slots = tables[owners, positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        return cls(
            tokens=len(positions),
            seqs=len(lengths),
            num_blocks=tables.size,
            arrays=(
                np.arange(len(positions), dtype=np.int64) % VOCAB_SIZE,
                positions,
                np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
                np.array(ends, np.int32),
            ),
            tables=(tables, np.zeros(len(lengths), np.int32), slots),
        )

    def run(self, tape: Any, *, paged: bool) -> None:
        """Replay a tape that has a KV group, or none."""
        tape.run(*self.arrays, [self.tables] if paged else [], np.zeros(0, np.int64))
