"""Blocks that a drafter has written, and copies that matter to it."""

from __future__ import annotations

from headrace.core.types import BlockCopy, KVGroupSpec, Retention, SeqSlice, TableUpdate
from headrace.runner.block_tables import BlockTables
from headrace.runner.packing import pack
from headrace.speculative.written import WrittenBlocks


def test_only_written_blocks_are_copied() -> None:
    tables = [BlockTables(KVGroupSpec("full", 8, 4, Retention.FULL), 2) for _ in range(2)]
    for table in tables:
        table.apply(0, TableUpdate(0, (5, 2), 0))
    written = WrittenBlocks(tables)
    copies = [BlockCopy(0, 5, 1), BlockCopy(1, 2, 3), BlockCopy(0, 1, 4), BlockCopy(0, 7, 5)]
    assert written.among(copies) == []
    work = SeqSlice(1, (9, 9, 9), 2, sample=False)  # positions 2 to 4 lie in both blocks
    written.add(pack([work], [0], tables, ()))
    assert written.among(copies) == copies[:3]  # the third reads what the first wrote
    assert written.among([BlockCopy(0, 5, 6)]) == []  # the fourth put what nobody wrote over block 5
