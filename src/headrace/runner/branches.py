"""How a tree of drafts is computed without a mask: each of its branches is a sequence of the batch.

The main chain (see core.trees) is written to the sequence's own blocks. Every other leaf has a block table of its own,
in which scratch blocks take the place of those from the first draft on, with a copy of what the first of them held
before the step. A draft is computed once, for the first leaf that it leads to, and its key and value are also written
for the other ones. So each draft sees the memory that decoding one token at a time would show it, in every kind of
attention, and its logits have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.core import trees
from headrace.core.types import BlockCopy, SeqSlice
from headrace.runner.block_tables import BlockTables


@dataclass(frozen=True, slots=True)
class Branched:
    """A slice with a tree, as it is computed: drafts that no scratch block was left for are missing.

    `work` is the slice with its known tokens and then the drafts in the order of `nodes`, which counts those of the
    slice as it was planned; `draft_parents` are those among `work`'s own drafts. `segments` are the sequences of the
    batch that make it up, in order, each with its row of the block tables; `writes` are (token of `work`, row,
    position): the key and value of the token go there, too. `copies` come before the step. `rows` is the row of each
    draft, by the branch that it was computed for.
    """

    work: SeqSlice
    segments: tuple[tuple[SeqSlice, int], ...]
    writes: tuple[tuple[int, int, int], ...]
    copies: tuple[BlockCopy, ...]
    rows: tuple[int, ...]


class Branches:
    """Scratch blocks for up to `count` branches in one step; their tables are the last `count` rows of `tables`."""

    def __init__(self, tables: Sequence[BlockTables | None], first_row: int, count: int) -> None:
        self._tables = [] if None in tables else [table for table in tables if table is not None]
        self._first_row, self._count = first_row, count if self._tables else 0
        self._each = min((table.group.scratch // count for table in self._tables), default=0) if count else 0
        self._taken = 0

    def begin(self) -> None:
        """A new step: all scratch blocks are free."""
        self._taken = 0

    def lay_out(self, work: SeqSlice, row: int) -> Branched:
        """Divide a slice whose drafts are a tree among the sequence's own row and those of free branches."""
        parents, first = work.draft_parents, work.start + work.known  # the position of the first draft
        main = trees.main_chain(parents)
        order, place = list(main), {node: row for node in main}
        drafts = work.tokens[work.known :]
        chain = tuple(drafts[node] for node in main)
        segments = [(replace(work, tokens=work.tokens[: work.known] + chain, draft_parents=()), row)]
        writes: list[tuple[int, int, int]] = []
        copies: list[BlockCopy] = []
        for leaf in _leaves(parents):
            path = trees.path_to(parents, leaf)
            if leaf in place or not self._has_room(first, len(path)):
                continue
            branch = self._first_row + self._taken
            copies += self._open(row, branch, work.start, first)
            shared = [node for node in path if node in place]
            own = path[len(shared) :]
            border = max(work.start, first // self._size * self._size)
            writes += [(position - work.start, branch, position) for position in range(border, first)]
            writes += [
                (work.known + order.index(node), branch, first + depth) for depth, node in enumerate(shared)
            ]
            tokens = tuple(drafts[node] for node in own)
            segments.append((SeqSlice(work.request_id, tokens, first + len(shared), sample=False), branch))
            order += own
            place.update(dict.fromkeys(own, branch))
        new = {node: at for at, node in enumerate(order)} | {-1: -1}
        laid = replace(
            work,
            tokens=work.tokens[: work.known] + tuple(drafts[node] for node in order),
            num_draft=len(order),
            draft_parents=tuple(new[parents[node]] for node in order),
        )
        return Branched(
            laid, tuple(segments), tuple(writes), tuple(copies), tuple(place[node] for node in order)
        )

    def keep(self, laid: Branched, row: int, path: Sequence[int]) -> list[BlockCopy]:
        """Copies that bring the accepted drafts `path` of `laid.work` into the sequence's own blocks."""
        beside = [depth for depth, node in enumerate(path) if laid.rows[node] != row]
        if not beside:
            return []
        first = laid.work.start + laid.work.known
        branch = laid.rows[path[-1]]
        blocks = range((first + beside[0]) // self._size, (first + beside[-1]) // self._size + 1)
        return [
            BlockCopy(group, table.block_at(branch, logical), table.block_at(row, logical))
            for logical in blocks
            for group, table in enumerate(self._tables)
        ]

    @property
    def _size(self) -> int:
        return self._tables[0].group.block_size

    def _has_room(self, first: int, depth: int) -> bool:
        blocks = (first % self._size + depth - 1) // self._size + 1 if self._tables else 0
        return self._taken < self._count and blocks <= self._each

    def _open(self, row: int, branch: int, start: int, first: int) -> list[BlockCopy]:
        """Take the next branch, for drafts from position `first` on of a slice that begins at `start`."""
        logical = first // self._size
        copies = []
        for group, table in enumerate(self._tables):
            scratch = table.group.num_blocks + self._taken * self._each
            if logical * self._size < start:
                copies.append(BlockCopy(group, table.block_at(row, logical), scratch))
            table.branch(row, branch, logical, range(scratch, scratch + self._each))
        self._taken += 1
        return copies


def _leaves(parents: Sequence[int]) -> list[int]:
    inner = set(parents)
    return [node for node in range(len(parents)) if node not in inner]
