"""A snapshot of an engine: its sequences as lanes, and which of them hold which KV blocks. For displays."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.core.engine import Engine, EngineStats
from headrace.core.kv_manager import KVManager
from headrace.core.request import Request
from headrace.core.types import Status

MAX_LANES = 256
"""Most sequences listed in a snapshot; running ones come first. The counts in its statistics include all of them."""
MAX_CELLS = 2048
"""Cells of one map. In a larger pool a cell stands for several neighbouring blocks."""

NO_LANE = -1
RUN = 5
"""Numbers of one run of a map."""


class Phase(enum.Enum):
    """What a sequence is doing, in the usual terms. Recomputing after a preemption is a prefill, too."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class Lane:
    """One sequence. Times in seconds on the engine's clock, None until it happened; the rest counts tokens, but for
    `num_preemptions`. No token is in it, only how many there are."""

    request_id: str
    index: int
    phase: Phase
    arrival_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    num_prompt: int
    num_computed: int
    num_cached: int
    num_output: int
    num_preemptions: int
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class BlockMap:
    """One KV group's pool. A cell stands for `blocks_per_cell` blocks, and shows what its most used block is. `held`
    and `findable` count blocks: in use, and free with content that the prefix cache knows.

    `runs` lie flat, RUN numbers each: first cell, how many cells, users, lane, place. Each of the cells is held by that
    many users; 0 means free, but findable again. `lane` is the index among the snapshot's lanes of a sequence that
    holds them, as its logical blocks place, place + 1, and so on; both are NO_LANE where there is none, or where it is
    not among the listed lanes. Cells in no run are free, and the prefix cache knows nothing of their content.
    """

    name: str
    num_blocks: int
    block_size: int
    blocks_per_cell: int
    held: int
    findable: int
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`now` on the engine's clock; `max_num_seqs` and `max_num_batched_tokens` bound one step."""

    now: float
    stats: EngineStats
    max_num_seqs: int
    max_num_batched_tokens: int
    lanes: tuple[Lane, ...]
    maps: tuple[BlockMap, ...]


def snapshot(engine: Engine, now: float) -> Snapshot:
    """Taken between two steps. Costs time in proportion to the lanes and to the blocks that are held or findable."""
    scheduler = engine.scheduler
    running = scheduler.running
    named = [*running[:MAX_LANES], *islice(scheduler.waiting, max(0, MAX_LANES - len(running)))]
    return Snapshot(
        now=now,
        stats=engine.stats(),
        max_num_seqs=engine.config.max_num_seqs,
        max_num_batched_tokens=engine.config.max_num_batched_tokens,
        lanes=tuple(_lane(request) for request in named),
        maps=tuple(_map(scheduler.kv, group, running) for group in range(len(scheduler.kv.groups))),
    )


def _lane(request: Request) -> Lane:
    stats = request.stats
    return Lane(
        request.name, request.index, _phase(request), stats.arrival_s, stats.first_scheduled_s, stats.first_token_s,
        request.num_prompt, request.num_computed, stats.num_cached, request.num_output, stats.num_preemptions,
        stats.num_drafted, stats.num_accepted,
    )  # fmt: skip


def _phase(request: Request) -> Phase:
    if request.status is Status.PREEMPTED:
        return Phase.PREEMPTED
    if request.status is not Status.RUNNING:
        return Phase.QUEUED
    return Phase.DECODE if request.decodes else Phase.PREFILL


def _map(kv: KVManager, group: int, running: Sequence[Request]) -> BlockMap:
    spec, cache = kv.groups[group], kv.cache
    scale, sinks = -(-spec.num_blocks // MAX_CELLS), spec.sink_blocks
    users, owner, place = ([value] * spec.num_blocks for value in (0, NO_LANE, NO_LANE))
    held: list[int] = []
    for lane, request in enumerate(running):
        table = request.tables[group]
        for entry, block in enumerate(table.held):
            users[block] += 1
            if users[block] == 1:
                held.append(block)
                if lane < MAX_LANES:
                    owner[block] = lane
                    place[block] = entry if entry < sinks else entry + table.dropped
    findable = [] if cache is None else [block for block in cache.findable(group) if not users[block]]
    shown = {block // scale: block for block in findable}  # cell -> the block that stands for it
    for block in held:
        other = shown.setdefault(block // scale, block)
        if users[other] < users[block]:
            shown[block // scale] = block
    cells = [(cell, users[shown[cell]], owner[shown[cell]], place[shown[cell]]) for cell in sorted(shown)]
    return BlockMap(
        spec.name, spec.num_blocks, spec.block_size, scale, len(held), len(findable), tuple(_runs(cells))
    )


def _runs(cells: Iterable[tuple[int, int, int, int]]) -> list[int]:
    """Neighbours with the same users and lane, and with consecutive places, put together. See BlockMap."""
    runs: list[int] = []
    ahead = (NO_LANE,) * 4  # the cell that would extend the last run
    for found in cells:
        if found == ahead:
            runs[-RUN + 1] += 1
        else:
            cell, users, lane, place = found
            runs += (cell, 1, users, lane, place)
        cell, users, lane, place = found
        ahead = (cell + 1, users, lane, place if place == NO_LANE else place + 1)
    return runs
