"""Which blocks of a drafter's KV groups were ever written.

While drafting rests, sequences share and copy blocks in these groups, too. Copying those that hold nothing would only
take memory from the system.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.types import BlockCopy
from headrace.runner.block_tables import BlockTables
from headrace.runner.step import GroupTables, Step


class WrittenBlocks:
    """Of each of the drafter's groups, in their order."""

    def __init__(self, tables: Sequence[BlockTables | None]) -> None:
        self._marks = [
            np.zeros(0 if table is None else table.group.memory_blocks, dtype=np.bool_) for table in tables
        ]

    def add(self, step: Step) -> None:
        """A step of the drafter writes its tokens."""
        for marks, group in zip(self._marks, step.groups, strict=True):
            if isinstance(group, GroupTables):
                marks[group.slots[group.slots >= 0] // group.block_size] = True

    def among(self, copies: Sequence[BlockCopy]) -> list[BlockCopy]:
        """The copies of blocks that hold something, one after the other."""
        found = []
        for copy in copies:
            marks = self._marks[copy.group]
            marks[copy.target] = marks[copy.source]
            if marks[copy.source]:
                found.append(copy)
        return found
