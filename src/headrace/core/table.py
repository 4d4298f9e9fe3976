"""The block table of one sequence in one KV group: which blocks hold its tokens, and what of that changed."""

from __future__ import annotations

from headrace.core.types import NOWHERE, KVGroupSpec, TableUpdate


class Table:
    """Block table of one sequence in one KV group; see TableUpdate for how live entries map to logical blocks.

    `changed_from` is the first live entry that changed since the last TableUpdate. In a group of retention STATE the
    one live entry is the slot with the state after the computed tokens, or after those of the slice just granted;
    the other fields are described in states.py. `evicted` tokens have been given up, so the token at position p has
    place p - evicted; `targets` are the blocks that the slice just granted moves those to stay to.
    """

    __slots__ = (
        "base", "branch", "changed_from", "drafts", "dropped", "evicted", "live", "source", "tail", "targets",
        "told_dropped", "writes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.live: list[int] = []
        self.dropped = 0
        self.changed_from = 0
        self.told_dropped = 0
        self.source = NOWHERE
        self.writes: list[tuple[int, int]] = []
        self.branch: int | None = None
        self.base = 0
        self.drafts: list[int] = []
        self.tail: tuple[bytes, int] | None = None
        self.evicted = 0
        self.targets: list[int] = []

    @property
    def held(self) -> list[int]:
        """Every block that it has a reference to."""
        if self.branch is None and not self.drafts and not self.targets:
            return self.live
        branch = () if self.branch is None else (self.branch,)
        return [*self.live, *self.drafts, *branch, *self.targets]

    @property
    def logical_len(self) -> int:
        """Logical blocks covered so far, dropped ones included."""
        return len(self.live) + self.dropped

    def block_at(self, spec: KVGroupSpec, logical: int) -> int | None:
        """The block with the tokens of a logical block; None where it was dropped, or is not there yet."""
        entry = logical
        if logical >= spec.sink_blocks:
            entry -= self.dropped
            if entry < spec.sink_blocks and self.dropped:
                return None
        return self.live[entry] if entry < len(self.live) else None

    def take_update(self) -> TableUpdate | None:
        """What changed since the last call; None where nothing did."""
        first = min(self.changed_from, len(self.live))
        blocks = tuple(self.live[first:])
        if not blocks and self.dropped == self.told_dropped:
            return None
        self.changed_from = len(self.live)
        self.told_dropped = self.dropped
        return TableUpdate(first, blocks, self.dropped, self.evicted)


def dropped_blocks(spec: KVGroupSpec, num_computed: int) -> int:
    """Blocks between sinks and window that queries at positions >= num_computed cannot see."""
    if spec.window is None:
        return 0
    return max(0, max(0, num_computed - spec.window + 1) // spec.block_size - spec.sink_blocks)
