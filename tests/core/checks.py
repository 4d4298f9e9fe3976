"""Invariants of a whole engine, checked from the outside between any two calls. All raise Broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from headrace.core.engine import Engine
from headrace.core.kv_manager import KVManager
from headrace.core.pins import MOST
from headrace.core.request import Request, Table
from headrace.core.types import KVGroupSpec, Status, StepPlan


class Broken(AssertionError):
    """An invariant does not hold. The message starts with which."""


def unfinished(engine: Engine) -> list[Request]:
    return list(engine._requests.values())


def check_pools(kv: KVManager, requests: Iterable[Request]) -> None:
    """Reference counts are the table entries that name a block; the free list is exactly the blocks without any."""
    requests = list(requests)
    for group, pool in enumerate(kv.pools):
        named = Counter(block for request in requests for block in request.tables[group].held)
        references = pool._references  # read often: this is most of the time of a random run
        counted = {block: count for block, count in enumerate(references) if count}
        if counted != dict(named):
            raise Broken(f"reference counts of group {group}: {counted}, but tables name {dict(named)}")
        free = pool.free_order()
        if sorted(free) != [block for block, count in enumerate(references) if not count]:
            raise Broken(f"free list of group {group}: {free} with references {counted}")
        if pool.num_free != len(free) or len(free) + len(counted) != pool.num_blocks:
            raise Broken(f"free list of group {group}: {len(free)} blocks, {pool.num_free} counted")
        backwards = []
        for end in (pool.num_blocks + 1, pool.num_blocks):
            block = pool._previous[end]
            while block != end:
                backwards.append(block)
                block = pool._previous[block]
        if backwards != free[::-1]:
            raise Broken(f"free list of group {group}: {free} forwards, {backwards} backwards")


def check_cache(kv: KVManager, content_of: Callable[[bytes, int, int], bool]) -> None:
    """The cache's indices agree, and every block that it would return holds the KV of its key, except those that
    the step in flight writes.

    `content_of(key, group, block)`: whether a block holds the KV of the block-long end of the key's prefix.
    """
    cache = kv.cache
    if cache is None:
        return
    for group, nodes in enumerate(cache._node_of_block):
        for block, node in nodes.items():
            if node.blocks[group] != block or cache._nodes.get(node.key) is not node:
                raise Broken(f"cache index: block {block} of group {group} points at a stale node")
            if not content_of(node.key, group, block) and (group, block) not in kv.step._writer:
                raise Broken(f"cache content: block {block} of group {group} holds something else")
    for node in cache._nodes.values():
        held = [
            nodes.get(block) is node
            for nodes, block in zip(cache._node_of_block, node.blocks, strict=True)
            if block is not None
        ]
        if not held or not all(held):
            raise Broken(f"cache index: a node without its blocks {node.blocks}")
    children = {node.key for siblings in cache._children.values() for node in siblings}
    first = sum(sum(salts.values()) for salts in cache._first_blocks.values())
    if children != set(cache._nodes) or first != sum(node.first for node in cache._nodes.values()):
        raise Broken("cache index: the tree does not list the nodes")


def check_pins(kv: KVManager, now: float) -> None:
    """Pinned blocks can be found, are after the other free blocks, within the share, and not expired."""
    for group, pool in enumerate(kv.pools):
        pinned, held = set(kv.pins._pins[group]), {block for where, block in kv._held if where == group}
        if not pinned <= pool._pinned <= pinned | held:
            raise Broken(
                f"pins: group {group} has {pool._pinned}, but {pinned} are known, and {held} are held"
            )
        if pinned and (kv.cache is None or not all(kv.cache.holds(group, block) for block in pinned)):
            raise Broken(f"pins: some of {pinned} cannot be found")
        order = [block in pool._pinned for block in pool.free_order()]
        if order != sorted(order):
            raise Broken(f"pins: {pool.free_order()} with {pool._pinned}")
        if len(pinned) > MOST * pool.num_blocks or len(kv.pins._heaps[group]) > 4 * len(pinned) + 65:
            raise Broken(f"pins: {len(pinned)} of {pool.num_blocks}, {len(kv.pins._heaps[group])} entries")
        if any(kv.pins.until((group, block)) <= now for block in pinned):  # type: ignore[operator]
            raise Broken("pins: one has outlived its time")


def check_queues(engine: Engine) -> None:
    """Every unfinished request is in exactly one place, and its status matches."""
    scheduler = engine.scheduler
    places = [r.number for r in (*scheduler.running, *scheduler.waiting)]
    if sorted(places) != sorted(engine._requests):
        raise Broken(f"queues: hold {sorted(places)}, unfinished are {sorted(engine._requests)}")
    if any(r.status is not Status.RUNNING for r in scheduler.running):
        raise Broken("queues: a running request has another status")
    if any(r.status not in (Status.WAITING, Status.PREEMPTED) for r in scheduler.waiting):
        raise Broken("queues: a waiting request has another status")
    if any(any(t.live for t in r.tables) for r in scheduler.waiting):
        raise Broken("queues: a waiting request holds blocks")
    if len(scheduler.running) > engine.config.max_num_seqs:
        raise Broken(f"limits: {len(scheduler.running)} requests run")


def check_plan(engine: Engine, plan: StepPlan) -> None:
    """The plan obeys the limits and writes only to blocks of a single sequence. Later slices of the step may share
    them: those read what is written, or only what was in the block before."""
    kv = engine.scheduler.kv
    tokens = sum(len(work.tokens) for work in plan.slices)
    if tokens > engine.config.max_num_batched_tokens or len(plan.slices) > engine.config.max_num_seqs:
        raise Broken(f"limits: {tokens} tokens in {len(plan.slices)} slices")
    written: set[tuple[int, int]] = set()
    check_states(engine, plan)
    for at, work in enumerate(plan.slices):
        request, end = engine._requests[work.request_id], work.start + work.span
        for group, (spec, pool, table) in enumerate(zip(kv.groups, kv.pools, request.tables, strict=True)):
            if spec.is_state:
                continue
            if table.logical_len * spec.block_size < end:
                raise Broken(f"table: no block for position {end - 1}")
            for block in written_blocks(spec, table, work.start + work.num_stored, end):
                if (group, block) in written:
                    raise Broken(f"shared write: block {block} is written by two slices")
                written.add((group, block))
                allowed = sum(
                    block in engine._requests[later.request_id].tables[group].live
                    and later.new is not None
                    and (
                        later.start + len(later.tokens) <= work.start
                        or work.request_id in kv.step._sources.get(later.request_id, ())
                    )
                    for later in plan.slices[at + 1 :]
                )
                if pool.references(block) != 1 + allowed:
                    raise Broken(f"shared write: block {block} has {pool.references(block)} references")
                found = kv.cache is not None and kv.cache.holds(group, block)
                if found and kv.step._writer.get((group, block)) != work.request_id:
                    raise Broken(f"shared write: block {block} is in the prefix cache")


def check_states(engine: Engine, plan: StepPlan) -> None:
    """A slice leaves its state in a slot of its own."""
    kv = engine.scheduler.kv
    for work in plan.slices:
        request = engine._requests[work.request_id]
        for group, (spec, pool, table) in enumerate(zip(kv.groups, kv.pools, request.tables, strict=True)):
            if not spec.is_state:
                continue
            moves = work.states[group]
            own = [table.live[0], *table.drafts]  # after the known tokens, and after each draft
            known = len(work.tokens) - work.num_draft
            ends = list(enumerate(own, known))
            if moves is None or list(moves.writes[-len(own) :]) != ends or len(own) != work.num_draft + 1:
                raise Broken(f"state: {moves} does not end in {own}")
            if any(pool.references(slot) != 1 for slot in table.drafts):
                raise Broken(f"state: the slots of drafts {table.drafts} are shared")
            if pool.references(table.live[0]) != 1 or table.dropped or len(table.live) != 1:
                raise Broken(f"state: slot {table.live} has {pool.references(table.live[0])} references")
            slots = [slot for _, slot in moves.writes]
            if len(set(slots)) != len(slots) or list(moves.writes) != sorted(moves.writes):
                raise Broken(f"state: {moves} writes a slot twice, or not in order")


def kv_requests(engine: Engine) -> list[Request]:
    return engine.scheduler.running


def written_blocks(spec: KVGroupSpec, table: Table, start: int, end: int) -> list[int]:
    """Blocks that hold the positions start … end - 1."""
    logical = range(start // spec.block_size, -(-end // spec.block_size)) if start < end else ()
    return [table.live[i if i < spec.sink_blocks else i - table.dropped] for i in logical]
