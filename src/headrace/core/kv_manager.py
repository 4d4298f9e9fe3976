"""Which blocks each sequence holds, in every KV group: growth, windows, sharing, copy-on-write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from headrace.core.block_pool import BlockPool
from headrace.core.eviction import Eviction
from headrace.core.kv_usage import KVUsage, usage_of
from headrace.core.pins import Pins
from headrace.core.prefix_cache import BlockKeys, CacheStats, Hit, PrefixCache
from headrace.core.request import Request
from headrace.core.same_prompts import SamePrompts, needs_every_token
from headrace.core.states import StateGroup
from headrace.core.step_writes import Cell, StepWrites
from headrace.core.table import Table, dropped_blocks
from headrace.core.types import BlockCopy, KVGroupSpec, Retention, StateSlots, TableUpdate


class KVManager:
    """Owns one pool a group and the prefix cache over them. All operations keep the pools' invariants;
    `grow` and `admit` change nothing when they do not succeed, except that blocks outside a window are freed."""

    def __init__(
        self,
        groups: Sequence[KVGroupSpec],
        *,
        prefix_caching: bool = True,
        cache_scope: bytes = b"",
        eviction: Eviction | None = None,
    ) -> None:
        """`eviction`: as in all requests that evict tokens; it holds for the groups that keep everything."""
        self._scope = cache_scope
        self.groups = tuple(groups)
        self.block_size = groups[0].block_size
        if any(group.block_size != self.block_size for group in groups):
            raise ValueError("all KV groups must have one block size")
        self.cache = PrefixCache(groups) if prefix_caching else None
        self.step = StepWrites()
        self._prompts = SamePrompts(self.groups)
        self._unchanged = (None,) * len(self.groups)
        self.has_windows = any(group.window is not None for group in self.groups)
        self.pools = tuple(
            BlockPool(group.num_blocks, None if self.cache is None else partial(self._evict, index))
            for index, group in enumerate(groups)
        )
        self.pins = Pins(self.pools)
        self._states = {
            index: StateGroup(index, group, pool, self.cache, partial(self._evict, index))
            for index, (group, pool) in enumerate(zip(self.groups, self.pools, strict=True))
            if group.is_state
        }
        self._held: list[Cell] = []  # cached blocks of the head of the queue
        self._evicting = frozenset(
            index
            for index, group in enumerate(self.groups)
            if eviction is not None and group.retention is Retention.FULL
        )
        self._budget = 0 if eviction is None else eviction.budget
        self._kept_blocks = -(-self._budget // self.block_size)  # that evicting moves tokens to

    def keys(self, salt: str) -> BlockKeys:
        """An empty chain of block keys for a sequence with this salt."""
        return BlockKeys(salt, self.block_size, self._scope)

    @property
    def has_states(self) -> bool:
        """Whether some group holds recurrent states."""
        return bool(self._states)

    def longest_sequence(self) -> int | None:
        """Tokens that one sequence can hold when it is alone; None when windows bound every group.

        A pool that is too small for its window bounds the length like one without a window.
        """
        limits = [
            self._places(index)
            for index, group in enumerate(self.groups)
            if (reach := group.reach_blocks) is None or reach > group.num_blocks
        ]
        return min(limits, default=None)

    def _places(self, group: int) -> int:
        """Tokens of one sequence that a pool has room for, and for those that stay of them beside them."""
        spec = self.groups[group]
        whole = spec.num_blocks * spec.block_size
        if group not in self._evicting:
            return whole
        return max(min(whole, self._budget), whole - self._kept_blocks * spec.block_size)

    def lookup(self, request: Request) -> Hit | None:
        """Reusable blocks for the request's tokens, or None when prefix caching does not apply."""
        if self.cache is None or needs_every_token(request):
            return None
        return self.cache.lookup(request.keys, self.findable(request), request.salt)

    def findable(self, request: Request) -> list[int]:
        """The tokens to look up, and one more: all of them, unless some must be computed to decide what to evict."""
        if request.eviction is None:
            return request.tokens
        return request.tokens[: request.eviction.reusable(request.num_prompt) + 1]

    def admit(self, request: Request, hit: Hit) -> None:
        """Give the request references to the blocks of a hit."""
        request.num_computed = request.num_stored = hit.num_tokens
        for group, (spec, blocks) in enumerate(zip(self.groups, hit.blocks, strict=True)):
            self._take(request, group, list(blocks.values()), dropped_blocks(spec, hit.num_tokens))

    def fork(self, request: Request) -> Request | None:
        """Share the whole prompt of a sequence that has the same one; returns that sequence, None if there is none.

        A partly filled last block is shared too. Only the last prompt token is computed again, for its logits, and
        not written; the next writer copies the block first. A recurrent state is shared as it was before that token.
        """
        source = self._prompts.same(request)
        shares = None if source is None else self._prompts.shares(source)
        if shares is None:
            return None
        for group, (live, dropped) in enumerate(shares):
            self._take(request, group, live, dropped)
        request.num_computed, request.num_stored = request.num_prompt - 1, request.num_prompt
        return source

    def hold(self, hit: Hit | None) -> None:
        """Evict the blocks that a waiting request has found only after all others, as if pinned, until the next call.

        Else running sequences would take those blocks before the request joins.
        """
        for group, block in self._held:
            if self.pools[group].is_pinned(block) and self.pins.until((group, block)) is None:
                self.pools[group].unpin(block)
        self._held = []
        if hit is not None:
            for group, blocks in enumerate(hit.blocks):
                self._held += [(group, block) for block in reversed(blocks.values())]
        for group, block in self._held:
            self.pools[group].pin(block)

    def may_find_other(self, request: Request, hit: Hit | None, source: Request | None) -> bool:
        """Whether `fork` and `lookup`, which found these, may now find something that needs fewer blocks."""
        if source is None and self._prompts.may_share(request):
            return not needs_every_token(request)
        return hit is not None and self.cache is not None and self.cache.has_changed(hit, request.keys)

    def _take(self, request: Request, group: int, blocks: list[int], dropped: int) -> None:
        """Let a request without blocks start from these, which hold the KV that it needs, or will in this step."""
        pool, table = self.pools[group], request.tables[group]
        for block in blocks:
            pool.share(block)
            self.step.share(request.number, (group, block))
        table.live, table.dropped = blocks, dropped

    def blocks_short(self, request: Request, end: int, spare: int = 0) -> bool:
        """True when some group lacks the free blocks to hold the request up to `end` tokens plus `spare` blocks.

        Blocks that it must copy before it writes to them count as well.
        """
        for group, (spec, pool, table) in enumerate(
            zip(self.groups, self.pools, request.tables, strict=True)
        ):
            if spec.is_state:
                if self._states[group].slots_needed(table) > pool.num_free:
                    return True
                continue
            needed = self._blocks_to(request, group, end) - table.logical_len
            if spec.reach_blocks is not None:
                needed = min(needed, spec.reach_blocks + 1)  # one more, so that a chunk is not tiny
            if needed + len(self._shared(request, group)) + spare > pool.num_free:
                return True
        return False

    def _blocks_to(self, request: Request, group: int, end: int) -> int:
        """Logical blocks of the tokens up to `end`, or up to where tokens are evicted, with those that they move to."""
        table, point = request.tables[group], request.next_point
        if point is None or group not in self._evicting:
            return -(-end // self.block_size)
        blocks = -(-(min(end, point) - table.evicted) // self.block_size)
        return blocks + self._kept_blocks if end >= point else blocks

    def fits(self, request: Request) -> int:
        """How many more tokens, from num_computed on, the free blocks can take."""
        most: int | None = None
        for group, (pool, table) in enumerate(zip(self.pools, request.tables, strict=True)):
            if group in self._states:
                if self._states[group].slots_needed(table) > pool.num_free:
                    return 0
                continue
            self._drop(group, table, request.num_computed)
            free = pool.num_free - len(self._shared(request, group))
            end = (
                (table.logical_len + free) * self.block_size + table.evicted
                if free >= 0
                else request.num_stored
            )
            point = request.next_point
            if group in self._evicting and point is not None and end >= point:
                spare = free - (self._blocks_to(request, group, point) - table.logical_len)
                end = point if spare >= 0 else point - 1
            room = end - request.num_computed
            most = room if most is None else min(most, room)
        return request.gap if most is None else max(0, most)  # states have room for any number

    def grow(self, request: Request, num_tokens: int, copies: list[BlockCopy], ahead: int = 0) -> bool:
        """Make room for positions num_computed … num_computed + num_tokens - 1 in every group, and for a drafter's KV
        of `ahead` more.

        Frees blocks that fell out of a window, takes new blocks, and replaces shared blocks that would be
        written (appending to `copies`). False, with no block taken, when some group has too few free blocks.
        """
        end = request.num_computed + num_tokens
        end_block = -(-(end + ahead) // self.block_size)
        if request.eviction is None and self.has_room(request, end, end_block):
            return True
        evicts = end == request.next_point
        drafts = max(0, end - len(request.tokens))
        needed_blocks: list[tuple[int, list[int], int]] = []
        for group, (pool, table) in enumerate(zip(self.pools, request.tables, strict=True)):
            if group in self._states:
                if self._states[group].slots_needed(table) + drafts > pool.num_free:
                    return False
                needed_blocks.append((0, [], 0))
                continue
            self._drop(group, table, request.num_computed)
            shared = self._shared(request, group) if end > request.num_stored else []
            last = end_block if not table.evicted else -(-(end + ahead - table.evicted) // self.block_size)
            new, kept = (
                max(0, last - table.logical_len),
                self._kept_blocks if evicts and group in self._evicting else 0,
            )
            if new + len(shared) + kept > pool.num_free:
                return False
            needed_blocks.append((new, shared, kept))
        for group, (new, shared, kept) in enumerate(needed_blocks):
            pool, table = self.pools[group], request.tables[group]
            for entry in shared:
                source, target = table.live[entry], pool.allocate()
                copies.append(BlockCopy(group, source, target))
                table.live[entry] = target
                self._release(group, source)
                table.changed_from = min(table.changed_from, entry)
            table.live.extend(pool.allocate() for _ in range(new))
            table.targets = [pool.allocate() for _ in range(kept)]
        for state in self._states.values():
            state.advance(request, end)
        return True

    def targets(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """The blocks that the slice just granted moves tokens to, for each group; () where it evicts none."""
        if not any(table.targets for table in request.tables):
            return ()
        return tuple(tuple(table.targets) for table in request.tables)

    def evict(self, request: Request) -> int:
        """After the slice that moved what stays: free the blocks that it was moved from; returns the tokens given
        up."""
        self._prompts.forget(request)
        before = request.evicted
        for group in self._evicting:
            table = request.tables[group]
            for block in reversed(table.live):
                self._release(group, block)
            table.live, table.targets = table.targets, []
            table.changed_from = 0
            table.evicted = request.num_computed - self._budget
        return request.evicted - before

    def trim(self, request: Request, end: int) -> bool:
        """Free the blocks beyond positions 0 … end - 1, which were taken for drafts; whether there were any."""
        end = max(end, request.num_stored)
        found = False
        for group, table in enumerate(request.tables):
            if group in self._states:
                continue
            end_block = -(-(end - table.evicted) // self.block_size)
            while table.logical_len > end_block:
                self._release(group, table.live.pop())
                found = True
                table.changed_from = min(table.changed_from, max(0, len(table.live) - 1))  # tells its length
        return found

    def has_room(self, request: Request, end: int, end_block: int) -> bool:
        """True where the last block held has room and is not shared: most steps of a decoding sequence."""
        last = end_block - 1
        if self.has_windows or request.num_computed // self.block_size != last:
            return False
        if not self._states and last > (request.num_prompt - 1) // self.block_size:
            # only prompts are shared in blocks that are not full; without windows all tables are equally long
            return len(request.tables[0].live) == end_block
        if self._states and any(not state.stays(request, end) for state in self._states.values()):
            return False
        for group, table in enumerate(request.tables):
            if group in self._states:
                continue
            if len(table.live) != end_block or self.pools[group].references(block := table.live[last]) != 1:
                return False
            if self.cache is not None and self.cache.holds(group, block):
                return False
        return True

    def take_blocks(self, request: Request) -> None:
        """One more block in every group, for a sequence whose blocks are full and its own. There must be free ones."""
        for pool, table in zip(self.pools, request.tables, strict=True):
            table.live.append(pool.allocate())

    def plan_slice(self, request: Request, num_tokens: int) -> None:
        """Let others share what the slice that was just granted will write, also in this same step.

        That holds for the full blocks among the known tokens, not for drafts, and for a prompt that ends in the slice.
        """
        start = max(request.num_computed, request.num_stored)
        end = min(request.num_computed + num_tokens, len(request.tokens))
        if request.evicted:
            return  # its KV depends on what was evicted
        if (
            start // self.block_size == end // self.block_size
            and request.num_computed >= request.num_prompt
            and not self._states
        ):
            return  # most steps of a decoding sequence: no block is full
        added = self.register(request, start, end)
        for cell in added:
            self.step.add(request.number, cell, findable=True)
        for group, state in self._states.items():
            state.follow(request, added, end)
            for slot in state.settle(request):
                self.step.add(request.number, (group, slot), findable=False)
        if request.num_computed < request.num_prompt <= end:
            self._prompts.add(request)
        if not start < request.num_prompt <= end:
            return
        last = (request.num_prompt - 1) // self.block_size
        for group, (spec, table) in enumerate(zip(self.groups, request.tables, strict=True)):
            if spec.is_state:
                continue
            for index in range(start // self.block_size, last + 1):
                if (block := table.block_at(spec, index)) is not None:
                    self.step.add(request.number, (group, block), findable=False)

    def register(self, request: Request, first: int, last: int) -> list[Cell]:
        """Make the full blocks among tokens first … last - 1 findable; returns the new ones."""
        indices = range(first // self.block_size, last // self.block_size)
        if self.cache is None or not indices:  # no block was filled
            return []
        request.keys.extend(request.tokens)
        found: list[Cell] = []
        if not self.has_windows and not self._states:  # a table lists all blocks
            lives = [table.live for table in request.tables]
            for index in indices:
                blocks: list[int | None] = [live[index] if index < len(live) else None for live in lives]
                found += self.cache.insert(index, request.keys, request.tokens, request.salt, blocks)
            return found
        for index in indices:
            blocks = [
                self._states[group].kept(request, index)
                if group in self._states
                else table.block_at(spec, index)
                for group, (spec, table) in enumerate(zip(self.groups, request.tables, strict=True))
            ]
            found += self.cache.insert(index, request.keys, request.tokens, request.salt, blocks)
        return found

    def accept(self, request: Request, first: int, last: int, accepted: int) -> None:
        """Of the drafts of the slice that was just run, from token `first` on, only the first `accepted` are part of
        the sequence, whose full blocks up to `last` become findable."""
        added = self.register(request, first, last)
        for state in self._states.values():
            state.follow(request, added, last)
            state.accept(request, accepted)

    def take_back(self, number: int) -> None:
        """Forget the blocks that a sequence's slice was to write: it failed, or it read from a slice that failed."""
        if self.cache is not None:
            for group, block in self.step.findable(number):
                self.cache.forget(group, block)

    def pin(self, request: Request, num_blocks: int, until: float) -> int:
        """Pin the first blocks of a sequence, whose KV is computed; returns the tokens that can be found again for sure
        while no pin is broken: all of theirs or none."""
        if self.cache is None:
            return 0
        request.keys.extend(request.tokens)
        cells, complete = self.cache.kept(request.keys, num_blocks)
        for cell in reversed(
            cells
        ):  # in the order in which they are freed: a prefix is evicted after its tail
            self.pins.add(cell, until)
        complete = complete and all(
            self.pins.until(cell) is not None for cell in cells
        )  # not too many for the pool
        return num_blocks * self.block_size if complete else 0

    def cache_stats(self) -> CacheStats | None:
        """A copy of what the prefix cache has counted; None without one."""
        if self.cache is None:
            return None
        return replace(self.cache.stats.snapshot(), pins=self.pins.made, pins_broken=self.pins.broken)

    def free(self, request: Request) -> None:
        """Free every block and reset num_computed. The tail is freed first, so a prefix is evicted after its tail."""
        self._prompts.forget(request)
        for group, table in enumerate(request.tables):
            for block in reversed(table.held):
                self._release(group, block)
        request.tables = [Table() for _ in self.groups]
        request.num_computed = request.num_stored = 0

    def updates(self, request: Request) -> tuple[TableUpdate | None, ...]:
        """Changes of the request's tables since the last call; a table without changes gives None."""
        for table in request.tables:
            if table.changed_from < len(table.live) or table.dropped != table.told_dropped:
                return tuple(table.take_update() for table in request.tables)
        return self._unchanged

    def states(self, request: Request) -> tuple[StateSlots | None, ...]:
        """Where the slice just granted reads and writes states, for each group; () without such a group."""
        if not self._states:
            return ()
        return tuple(
            StateSlots(table.source, tuple(table.writes)) if spec.is_state else None
            for spec, table in zip(self.groups, request.tables, strict=True)
        )

    def usage(self, requests: Sequence[Request]) -> KVUsage:
        """Exact occupancy by the given sequences. O(blocks held): for reports, not for every step."""
        return usage_of(self.groups, self.pools, requests)

    def _evict(self, group: int, block: int) -> None:
        assert self.cache is not None
        self.cache.evict(group, block, pinned=self.pins.lose((group, block)))

    def _release(self, group: int, block: int) -> None:
        reusable = self.cache is not None and self.cache.holds(group, block)
        self.pools[group].release(block, reusable=reusable)

    def _drop(self, group: int, table: Table, num_computed: int) -> None:
        """Free the blocks that no query from `num_computed` on can see."""
        spec = self.groups[group]
        if spec.window is None:
            return
        count = dropped_blocks(spec, num_computed) - table.dropped
        if count <= 0:
            return
        first = spec.sink_blocks
        gone = table.live[first : first + count]
        del table.live[first : first + count]
        table.dropped += len(gone)
        table.changed_from = max(min(table.changed_from, first), table.changed_from - len(gone))
        for block in reversed(gone):
            self._release(group, block)

    def _shared(self, request: Request, group: int) -> list[int]:
        """Live entries that the next writes reach and that are not the request's own: another sequence refers to the
        block, or the prefix cache hands it out."""
        spec, pool, table = self.groups[group], self.pools[group], request.tables[group]
        entry = (max(request.num_computed, request.num_stored) - table.evicted) // self.block_size
        if entry >= spec.sink_blocks:
            entry = max(entry - table.dropped, spec.sink_blocks if table.dropped else 0)
        return [
            at
            for at in range(entry, len(table.live))
            if pool.references(table.live[at]) > 1
            or (self.cache is not None and self.cache.holds(group, table.live[at]))
        ]
