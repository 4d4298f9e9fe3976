"""How full the KV pools are, for reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.block_pool import BlockPool
from headrace.core.request import Request
from headrace.core.types import KVGroupSpec


@dataclass(frozen=True, slots=True)
class KVUsage:
    """Blocks and token places over all groups. `reserved` counts places in blocks that sequences hold,
    `used` those that hold a computed token still in reach; a place that several sequences share counts once.
    Slots of recurrent states are blocks without places."""

    total_blocks: int
    held_blocks: int
    reserved_tokens: int
    used_tokens: int


def usage_of(
    groups: Sequence[KVGroupSpec], pools: Sequence[BlockPool], requests: Sequence[Request]
) -> KVUsage:
    """Exact occupancy of the pools by these sequences; a pool and a table of each sequence for each group."""
    block_size = groups[0].block_size
    filled: dict[tuple[int, int], int] = {}
    slots: set[tuple[int, int]] = set()
    for request in requests:
        for group, (spec, table) in enumerate(zip(groups, request.tables, strict=True)):
            if spec.is_state:
                slots.update((group, slot) for slot in table.held)
                continue
            for entry, block in enumerate(table.live):
                logical = entry if entry < spec.sink_blocks else entry + table.dropped
                computed = request.num_computed - table.evicted
                tokens = min(block_size, max(0, computed - logical * block_size))
                filled[group, block] = max(filled.get((group, block), 0), tokens)
            filled.update({(group, block): 0 for block in table.targets})
    return KVUsage(
        total_blocks=sum(pool.num_blocks for pool in pools),
        held_blocks=len(filled) + len(slots),
        reserved_tokens=len(filled) * block_size,
        used_tokens=sum(filled.values()),
    )
