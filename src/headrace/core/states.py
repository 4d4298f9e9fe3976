"""Slots of recurrent states: where a sequence keeps its own, and which states stay for the prefix cache.

A slice reads the state from one slot and leaves it in another, or in the same one. So a state that others may read is
never overwritten, and sharing one copies nothing: the next slice reads the shared slot and writes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from headrace.core.block_pool import BlockPool
from headrace.core.prefix_cache import PrefixCache
from headrace.core.request import Request
from headrace.core.table import Table
from headrace.core.types import NOWHERE, KVGroupSpec


class StateGroup:
    """The slots of one KV group of retention STATE.

    Of a request's table, `live[0]` is the slot after the known tokens of the slice just granted and `source` the one
    before the slice, which starts at token `base`. `writes` are the (count, slot) where the slice leaves its state: in
    its own slot after the known tokens, before that in copies for the prefix cache, and in slot `branch` for the other
    completions of the request, which start from the state before the prompt's last token. After each draft the state
    goes to one of `drafts`: no draft can be taken back from a state, so `accept` picks the one after the last accepted.

    While a sequence generates, its state at the last whole block of tokens stays for the next turn of the
    conversation: its slot goes to the cache, and the sequence continues in another. `tail` is the key and slot of that
    state, which is forgotten when the next one is kept.
    """

    def __init__(
        self,
        index: int,
        spec: KVGroupSpec,
        pool: BlockPool,
        cache: PrefixCache | None,
        evict: Callable[[int], None],
    ) -> None:
        if spec.interval is not None and (spec.interval < 1 or spec.interval % spec.block_size):
            raise ValueError(f"states are kept every {spec.interval} tokens, which is not a number of blocks")
        self._index, self._spec, self._pool = index, spec, pool
        self._cache, self._evict = cache, evict

    def slots_needed(self, table: Table) -> int:
        """Free slots without which the sequence cannot continue, drafts apart: 0 or 1."""
        if not table.live or self._pool.references(table.live[0]) > 1:
            return 1
        return int(self._is_cached(table.live[0]) and self._pool.num_free > 0)  # else it leaves the cache

    def stays(self, request: Request, end: int) -> bool:
        """True where a slice up to `end` changes nothing but the content of the request's own slot."""
        table, start, size = request.tables[self._index], request.num_computed, self._spec.block_size
        if not table.live or start // size != end // size or self._branches(request, end):
            return False
        if end > len(request.tokens):
            return False
        slot = table.live[0]
        if self._pool.references(slot) > 1 or self._is_cached(slot):
            return False
        table.base, table.source, table.writes = start, slot, [(end - start, slot)]
        return True

    def advance(self, request: Request, end: int) -> None:
        """Take the slots of a slice up to `end`, drafts included. Copies are left out where no slot is free."""
        table, pool, start = request.tables[self._index], self._pool, request.num_computed
        drafts, end = max(0, end - len(request.tokens)), min(end, len(request.tokens))
        table.base = start
        table.source = table.live[0] if table.live else NOWHERE
        table.changed_from = 1  # no update of the table: the slice names its slots
        table.writes = []
        branches = self._branches(request, end)
        if branches and start == request.num_prompt - 1 and pool.num_free:
            pool.share(table.source)
            table.branch, branches = table.source, False
        table.live = [self._target(table)]
        table.writes.append((end - start, table.live[0]))
        table.drafts = [pool.allocate() for _ in range(drafts)]
        table.writes += [(end - start + index, slot) for index, slot in enumerate(table.drafts, 1)]
        for border in self._borders(request, end):
            if border < end and pool.num_free and not self._is_known(request, border):
                table.writes.append((border - start, pool.allocate()))
        if branches and start < request.num_prompt - 1 and pool.num_free:
            table.branch = pool.allocate()
            table.writes.append((request.num_prompt - 1 - start, table.branch))
        table.writes.sort()

    def kept(self, request: Request, index: int) -> int | None:
        """The slot in which the slice just granted leaves the state after logical block `index` for the cache."""
        table, border = request.tables[self._index], (index + 1) * self._spec.block_size
        if border not in self._borders(request, border):
            return None
        slots = (slot for count, slot in table.writes if table.base + count == border)
        return next((slot for slot in slots if slot != table.branch), None)

    def accept(self, request: Request, accepted: int) -> None:
        """Keep the state after so many of the slice's drafts, and release those after the others."""
        table = request.tables[self._index]
        if accepted:
            table.live, table.drafts[accepted - 1] = [table.drafts[accepted - 1]], table.live[0]
        for slot in table.drafts:
            self._release(slot)
        table.drafts = []

    def settle(self, request: Request) -> list[int]:
        """Leave the copies to the cache, once it knows them; gives the slot that other completions may read."""
        table = request.tables[self._index]
        kept = {table.live[0], *table.drafts}
        copies = [slot for _, slot in table.writes if slot not in kept]
        for slot in copies:
            if slot != table.branch:
                self._release(slot)
        return [slot for slot in copies if slot == table.branch]

    def follow(self, request: Request, added: Collection[tuple[int, int]], end: int) -> None:
        """Forget the tail if the slice just registered left a later one before `end`, or if a later one is known.
        `added`: (group, slot) pairs that the cache did not know."""
        table, size = request.tables[self._index], self._spec.block_size
        slots = {table.base + count: slot for count, slot in table.writes}
        generated = [at for at in slots if at % size == 0 and request.num_prompt < at <= end]
        if self._cache is None or not generated:
            return
        last, before = max(generated), table.tail
        key = request.keys.extend(request.tokens)[last // size - 1]
        if self._cache.find(self._index, key) is None:
            return
        own = (self._index, slots[last]) in added and not self._is_regular(last)
        table.tail = (key, slots[last]) if own else None
        if before is not None and self._cache.find(self._index, before[0]) == before[1]:
            self._forget(before[1])

    def _forget(self, slot: int) -> None:
        """Make an unused state unfindable, and its slot the next that is taken."""
        if self._cache is None or self._pool.references(slot) or self._pool.is_pinned(slot):
            return
        self._cache.forget(self._index, slot)
        self._pool.renew(slot)

    def _target(self, table: Table) -> int:
        """The slot of the state after the slice, which no other slice reads."""
        if not table.live:
            return self._pool.allocate()
        slot = table.live[0]
        if self._pool.references(slot) == 1 and not self._is_cached(slot):
            return slot
        if self._pool.num_free:
            target = self._pool.allocate()
            self._release(slot)
            return target
        self._evict(slot)
        return slot

    def _branches(self, request: Request, end: int) -> bool:
        """Whether other completions could start from the state before the prompt's last token."""
        last = request.num_prompt - 1
        due = request.params.n > 1 and last > 0 and request.num_computed <= last < end
        return due and request.tables[self._index].branch is None

    def _borders(self, request: Request, end: int) -> list[int]:
        """Numbers of tokens after which the state is kept, among those from the computed ones up to `end`."""
        size, interval, start = self._spec.block_size, self._spec.interval, request.tables[self._index].base
        if self._cache is None or start // size == end // size:
            return []
        ends = {(request.num_prompt - 1) // size * size, request.pin_blocks * size}
        if (last := min(end, len(request.tokens)) // size * size) > request.num_prompt:
            ends.add(last)
        if interval is not None:
            ends.update(range((start // interval + 1) * interval, end + 1, interval))
        return sorted(border for border in ends if start < border <= end)

    def _is_regular(self, border: int) -> bool:
        """Whether a state would be kept at this border whatever comes next."""
        return self._spec.interval is not None and border % self._spec.interval == 0

    def _is_known(self, request: Request, border: int) -> bool:
        key = request.keys.extend(request.tokens)[border // self._spec.block_size - 1]
        return self._cache is not None and self._cache.find(self._index, key) is not None

    def _is_cached(self, slot: int) -> bool:
        return self._cache is not None and self._cache.holds(self._index, slot)

    def _release(self, slot: int) -> None:
        self._pool.release(slot, reusable=self._is_cached(slot))
