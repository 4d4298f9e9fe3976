"""Which blocks the step in flight fills, and which sequences read them in that same step.

A prefix block can be shared as soon as its slice is planned: an executor runs slices layer by layer, so that a later
slice of the plan reads what an earlier one wrote. Whether the block's KV exists is known when the result comes.
"""

from __future__ import annotations

from collections.abc import Collection

Cell = tuple[int, int]
"""KV group, block."""


class StepWrites:
    """Filled while a step is planned, read when its result is committed, then cleared."""

    __slots__ = ("_findable", "_sources", "_writer")

    def __init__(self) -> None:
        self._writer: dict[Cell, int] = {}  # cell -> number of the sequence that writes it
        self._findable: dict[int, list[Cell]] = {}  # writer -> cells that its slice made findable
        self._sources: dict[int, set[int]] = {}  # reader -> writers

    def add(self, writer: int, cell: Cell, *, findable: bool) -> None:
        """The slice of `writer` fills this block, or the part of it that others may share."""
        self._writer[cell] = writer
        if findable:
            self._findable.setdefault(writer, []).append(cell)

    def share(self, reader: int, cell: Cell) -> None:
        """`reader` shares a block whose content may be written in this same step."""
        writer = self._writer.get(cell)
        if writer is not None:
            self._sources.setdefault(reader, set()).add(writer)

    def findable(self, writer: int) -> Collection[Cell]:
        """What the prefix cache must forget if the slice of `writer` fails."""
        return self._findable.get(writer, ())

    def reads_from(self, reader: int, writers: Collection[int]) -> bool:
        """Whether the slice of `reader` read what the slice of one of `writers` was to write."""
        return bool(self._sources) and not self._sources.get(reader, frozenset()).isdisjoint(writers)

    def clear(self) -> None:
        if self._writer:
            self._writer.clear()
            self._findable.clear()
            self._sources.clear()
