"""A block table as an executor sees it, built from the stream of updates alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.types import KVGroupSpec, TableUpdate


class ContractError(AssertionError):
    """The core requested something that no executor could do."""


@dataclass
class Mirror:
    """One block table, kept by applying updates as core.types.TableUpdate describes them."""

    group: KVGroupSpec
    live: list[int] = field(default_factory=list)
    dropped: int = 0

    def apply(self, update: TableUpdate) -> None:
        first = self.group.sink_blocks
        del self.live[first : first + max(0, update.dropped - self.dropped)]
        fits = update.first <= len(self.live) and (update.dropped >= self.dropped or update.first == 0)
        demand(fits, f"table: update {update} does not fit {self}")
        self.live[update.first :] = update.blocks
        self.dropped = update.dropped

    def block_of(self, position: int) -> int:
        logical = position // self.group.block_size
        entry = logical if logical < self.group.sink_blocks else logical - self.dropped
        behind_sinks = logical < self.group.sink_blocks or entry >= self.group.sink_blocks
        if not (behind_sinks and 0 <= entry < len(self.live)):
            raise ContractError(f"table: position {position} is not in {self}")
        return self.live[entry]


def demand(holds: bool, message: str) -> None:
    if not holds:
        raise ContractError(message)
