"""Which blocks each sequence holds, in every KV group: growth, windows, sharing, copy-on-write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from headrace.core.block_pool import BlockPool
from headrace.core.prefix_cache import Hit, PrefixCache
from headrace.core.request import Request, Table
from headrace.core.types import BlockCopy, KVGroupSpec, Pooling, TableUpdate


@dataclass(frozen=True, slots=True)
class KVUsage:
    """Blocks and token places over all groups. `reserved` counts places in blocks that sequences hold,
    `used` those that hold a computed token still in reach; a place that several sequences share counts once."""

    total_blocks: int
    held_blocks: int
    reserved_tokens: int
    used_tokens: int


class KVManager:
    """Owns one pool a group and the prefix cache over them. All operations keep the pools' invariants;
    `grow` and `admit` change nothing when they do not succeed, except that blocks behind a window are given back."""

    def __init__(self, groups: Sequence[KVGroupSpec], *, prefix_caching: bool = True) -> None:
        self.groups = tuple(groups)
        self.block_size = groups[0].block_size
        if any(group.block_size != self.block_size for group in groups):
            raise ValueError("all KV groups must have one block size")
        self.cache = PrefixCache(groups) if prefix_caching else None
        self._unchanged = (None,) * len(self.groups)
        self._windows = any(group.window is not None for group in self.groups)
        evict = None if self.cache is None else self.cache.evict
        self.pools = tuple(
            BlockPool(group.num_blocks, None if evict is None else partial(evict, index))
            for index, group in enumerate(groups)
        )

    def longest_sequence(self) -> int | None:
        """Tokens that one sequence can hold when it is alone; None when windows bound every group.

        A pool that is too small for its window bounds the length like one without a window.
        """
        limits = [
            group.num_blocks * group.block_size
            for group in self.groups
            if (reach := group.reach_blocks) is None or reach > group.num_blocks
        ]
        return min(limits, default=None)

    def lookup(self, request: Request) -> Hit | None:
        """Reusable blocks for the request's tokens, or None when prefix caching does not apply."""
        if (
            self.cache is None
            or request.params.prompt_logprobs is not None
            or request.pooling is Pooling.MEAN  # both need every token to be computed
        ):
            return None
        return self.cache.lookup(request.keys, request.tokens, request.salt)

    def admit(self, request: Request, hit: Hit) -> None:
        """Give the request references to the blocks of a hit."""
        request.num_computed = hit.num_tokens
        for spec, pool, table, blocks in zip(
            self.groups, self.pools, request.tables, hit.blocks, strict=True
        ):
            for block in blocks.values():
                pool.share(block)
            table.live = list(blocks.values())
            table.dropped = _dropped(spec, hit.num_tokens)

    def fork(self, request: Request, leader: Request) -> bool:
        """Share the leader's prompt blocks, a partly filled one included; False when some are gone.

        The follower recomputes the last prompt token, for its logits, and that write copies a partly filled block.
        """
        start = request.num_prompt - 1
        end_block = -(-start // self.block_size)
        shares: list[tuple[list[int], int]] = []
        for spec, table in zip(self.groups, leader.tables, strict=True):
            dropped = _dropped(spec, start)
            if table.dropped > dropped or table.logical_len < end_block:
                return False
            sinks = table.live[: spec.sink_blocks] if dropped else []
            first = spec.sink_blocks + dropped if dropped else 0
            shares.append((sinks + table.live[first - table.dropped : end_block - table.dropped], dropped))
        for pool, table, (live, dropped) in zip(self.pools, request.tables, shares, strict=True):
            for block in live:
                pool.share(block)
            table.live, table.dropped = live, dropped
        request.num_computed = start
        return True

    def blocks_short(self, request: Request, end: int, spare: int = 0) -> bool:
        """True when some group lacks the free blocks to hold the request up to `end` tokens plus `spare` blocks."""
        for spec, pool, table in zip(self.groups, self.pools, request.tables, strict=True):
            needed = -(-end // self.block_size) - table.logical_len
            if spec.reach_blocks is not None:
                needed = min(needed, spec.reach_blocks + 1)  # one more, so that there is a chunk to speak of
            if needed + spare > pool.num_free:
                return True
        return False

    def fits(self, request: Request) -> int:
        """How many more tokens, from num_computed on, the free blocks can take."""
        most: int | None = None
        for spec, pool, table in zip(self.groups, self.pools, request.tables, strict=True):
            self._drop(spec, pool, table, request.num_computed)
            free = pool.num_free - len(self._shared(pool, table, spec, request.num_computed))
            room = (table.logical_len + free) * self.block_size - request.num_computed if free >= 0 else 0
            most = room if most is None else min(most, room)
        return max(0, most or 0)

    def grow(self, request: Request, num_tokens: int, copies: list[BlockCopy]) -> bool:
        """Make room for positions num_computed … num_computed + num_tokens - 1 in every group.

        Gives back blocks that fell out of a window, takes new blocks, and replaces shared blocks that would be
        written (appending to `copies`). False, with no block taken, when some group has too few free blocks.
        """
        end_block = -(-(request.num_computed + num_tokens) // self.block_size)
        if self._has_room(request, end_block):
            return True
        wanted: list[tuple[int, list[int]]] = []
        for spec, pool, table in zip(self.groups, self.pools, request.tables, strict=True):
            self._drop(spec, pool, table, request.num_computed)
            shared = self._shared(pool, table, spec, request.num_computed)
            new = max(0, end_block - table.logical_len)
            if new + len(shared) > pool.num_free:
                return False
            wanted.append((new, shared))
        for group, (new, shared) in enumerate(wanted):
            pool, table = self.pools[group], request.tables[group]
            for entry in shared:
                source, target = table.live[entry], pool.allocate()
                copies.append(BlockCopy(group, source, target))
                table.live[entry] = target
                self._release(group, source)
                table.changed_from = min(table.changed_from, entry)
            table.live.extend(pool.allocate() for _ in range(new))
        return True

    def _has_room(self, request: Request, end_block: int) -> bool:
        """True where the last block held takes the tokens and is nobody else's: most steps of a decoding sequence."""
        last = end_block - 1
        if self._windows or request.num_computed // self.block_size != last:
            return False
        for pool, table in zip(self.pools, request.tables, strict=True):
            if len(table.live) != end_block or pool.references(table.live[last]) != 1:
                return False
        return True

    def register(self, request: Request, first: int, last: int) -> None:
        """Make the full blocks among tokens first … last - 1 findable; their KV has been computed."""
        if self.cache is None:
            return
        last = min(last, request.num_computed)
        indices = range(first // self.block_size, last // self.block_size)
        if not indices:  # no block was filled
            return
        request.keys.extend(request.tokens)
        for index in indices:
            blocks = [
                _live_block(spec, table, index)
                for spec, table in zip(self.groups, request.tables, strict=True)
            ]
            self.cache.insert(index, request.keys, request.tokens, request.salt, blocks)

    def free(self, request: Request) -> None:
        """Give back every block, the tail first, so that a prefix outlives what follows it."""
        for group, table in enumerate(request.tables):
            for block in reversed(table.live):
                self._release(group, block)
        request.tables = [Table() for _ in self.groups]

    def updates(self, request: Request) -> tuple[TableUpdate | None, ...]:
        """What the executor has not been told of the request's tables; asking again gives None."""
        for table in request.tables:
            if table.changed_from < len(table.live) or table.dropped != table.told_dropped:
                return tuple(_tell(table) for table in request.tables)
        return self._unchanged

    def usage(self, requests: Sequence[Request]) -> KVUsage:
        """Exact occupancy by the given sequences. O(blocks held): for reports, not for every step."""
        filled: dict[tuple[int, int], int] = {}
        for request in requests:
            for group, (spec, table) in enumerate(zip(self.groups, request.tables, strict=True)):
                for entry, block in enumerate(table.live):
                    logical = entry if entry < spec.sink_blocks else entry + table.dropped
                    tokens = min(self.block_size, max(0, request.num_computed - logical * self.block_size))
                    filled[group, block] = max(filled.get((group, block), 0), tokens)
        return KVUsage(
            total_blocks=sum(pool.num_blocks for pool in self.pools),
            held_blocks=len(filled),
            reserved_tokens=len(filled) * self.block_size,
            used_tokens=sum(filled.values()),
        )

    def _release(self, group: int, block: int) -> None:
        reusable = self.cache is not None and self.cache.holds(group, block)
        self.pools[group].release(block, reusable=reusable)

    def _drop(self, spec: KVGroupSpec, pool: BlockPool, table: Table, num_computed: int) -> None:
        """Give back the blocks that no query from `num_computed` on can see."""
        if spec.window is None:
            return
        count = _dropped(spec, num_computed) - table.dropped
        if count <= 0:
            return
        first = spec.sink_blocks
        gone = table.live[first : first + count]
        del table.live[first : first + count]
        table.dropped += len(gone)
        table.changed_from = max(min(table.changed_from, first), table.changed_from - len(gone))
        group = self.pools.index(pool)
        for block in reversed(gone):
            self._release(group, block)

    def _shared(self, pool: BlockPool, table: Table, spec: KVGroupSpec, num_computed: int) -> list[int]:
        """Live entries that hold position num_computed or later and that another sequence refers to as well."""
        entry = num_computed // self.block_size
        if entry >= spec.sink_blocks:
            entry = max(entry - table.dropped, spec.sink_blocks if table.dropped else 0)
        return [at for at in range(entry, len(table.live)) if pool.references(table.live[at]) > 1]


def _dropped(spec: KVGroupSpec, num_computed: int) -> int:
    """Blocks between sinks and window that queries at positions >= num_computed cannot see."""
    if spec.window is None:
        return 0
    return max(0, max(0, num_computed - spec.window + 1) // spec.block_size - spec.sink_blocks)


def _live_block(spec: KVGroupSpec, table: Table, logical: int) -> int | None:
    entry = logical
    if logical >= spec.sink_blocks:
        entry -= table.dropped
        if entry < spec.sink_blocks and table.dropped:
            return None
    return table.live[entry] if entry < len(table.live) else None


def _tell(table: Table) -> TableUpdate | None:
    first = min(table.changed_from, len(table.live))
    blocks = tuple(table.live[first:])
    if not blocks and table.dropped == table.told_dropped:
        return None
    table.changed_from = len(table.live)
    table.told_dropped = table.dropped
    return TableUpdate(first, blocks, table.dropped)
