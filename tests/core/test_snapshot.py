"""Snapshots match the pools and the requests, and hold no tokens."""

from __future__ import annotations

from dataclasses import asdict
from random import Random

import pytest

from headrace.core import snapshot as module
from headrace.core.snapshot import NO_LANE, RUN, BlockMap, Phase, Snapshot, snapshot
from headrace.core.types import KVGroupSpec
from tests.core.build import driver, full, new, sinks, window
from tests.core.driver import Driver


def cells(one: BlockMap) -> dict[int, tuple[int, int, int]]:
    """cell -> users, lane, place; what runs mean, spelled out."""
    return {
        first + at: (users, lane, place if place == NO_LANE else place + at)
        for first, count, users, lane, place in runs(one)
        for at in range(count)
    }


def runs(one: BlockMap) -> list[tuple[int, ...]]:
    return [one.runs[at : at + RUN] for at in range(0, len(one.runs), RUN)]


def check(engine: Driver, taken: Snapshot) -> None:
    """Every cell of every map against the reference counts, the prefix cache and the block tables."""
    scheduler = engine.engine.scheduler
    for group, (pool, one) in enumerate(zip(scheduler.kv.pools, taken.maps, strict=True)):
        assert one.blocks_per_cell == 1
        shown = cells(one)
        assert len(shown) == sum(count for _, count, *_ in runs(one)), "runs overlap"
        for block in range(pool.num_blocks):
            users = pool.references(block)
            findable = scheduler.kv.cache is not None and scheduler.kv.cache.holds(group, block)
            if not users:
                assert shown.get(block) == ((0, NO_LANE, NO_LANE) if findable else None)
                continue
            assert shown[block][0] == users
            lane = taken.lanes[shown[block][1]]
            (owner,) = [r for r in scheduler.running if (r.name, r.index) == (lane.request_id, lane.index)]
            table, spec = owner.tables[group], scheduler.kv.groups[group]
            entry = table.live.index(block)
            assert shown[block][2] == (entry if entry < spec.sink_blocks else entry + table.dropped)
        held = sum(pool.references(block) > 0 for block in range(pool.num_blocks))
        assert (one.held, one.held + pool.num_free) == (held, one.num_blocks)
        assert one.findable == sum(users == 0 for users, _, _ in shown.values())


@pytest.mark.parametrize("groups", [(full(24),), (full(24), window(8, 24)), (sinks(4, 9, 7),)])
def test_maps_agree_with_the_pools_in_random_runs(groups: tuple[KVGroupSpec, ...]) -> None:
    random, shared, phases = Random(5), 0, set()
    engine = driver(*groups, max_model_len=60, max_num_batched_tokens=12)
    prefix = [7] * 9
    for turn in range(160):
        if random.random() < 0.3:
            prompt = [*prefix, *(random.randrange(40) for _ in range(random.randrange(1, 25)))]
            engine.add(
                new(f"r{turn}", prompt, max_tokens=random.randrange(1, 20), n=random.choice((1, 1, 3)))
            )
        if engine.engine.has_work:
            engine.step()
        taken = snapshot(engine.engine, float(turn))
        check(engine, taken)
        phases |= {lane.phase for lane in taken.lanes}
        shared += any(users > 1 for one in taken.maps for _, _, users, *_ in runs(one))
    assert shared > 10
    assert phases == set(Phase)


def test_a_wrong_map_is_noticed() -> None:
    engine = driver()
    engine.add(new("a", 9, max_tokens=5))
    engine.step()
    good = snapshot(engine.engine, 0.0)
    check(engine, good)
    engine.engine.scheduler.kv.pools[0].share(good.maps[0].runs[0])  # a leaked reference
    with pytest.raises(AssertionError):
        check(engine, snapshot(engine.engine, 0.0))


def test_lanes_show_the_progress_of_each_sequence() -> None:
    engine = driver(max_num_batched_tokens=8, max_num_seqs=2)
    engine.add(new("a", 12, max_tokens=3))
    engine.add(new("b", 3, max_tokens=3))
    engine.add(new("c", 3, max_tokens=3))
    reported = [(lane.request_id, lane.phase.value) for lane in snapshot(engine.engine, 0.0).lanes]
    assert reported == [("a", "queued"), ("b", "queued"), ("c", "queued")]
    engine.step()
    (first, *_) = snapshot(engine.engine, 1.0).lanes
    assert (first.phase, first.num_prompt, first.num_computed, first.num_output) == (Phase.PREFILL, 12, 8, 0)
    engine.step()
    engine.step()
    taken = snapshot(engine.engine, 2.0)
    lanes = {lane.request_id: lane for lane in taken.lanes}
    assert lanes["a"].phase is lanes["b"].phase is Phase.DECODE
    assert lanes["c"].phase is Phase.QUEUED
    assert (taken.stats.running, taken.stats.waiting) == (2, 1)
    assert (taken.max_num_seqs, taken.max_num_batched_tokens) == (2, 8)


def test_completions_that_wait_for_their_prompt_are_lanes_too() -> None:
    engine = driver(max_num_batched_tokens=4)
    engine.add(new("a", 9, n=3, max_tokens=2))
    assert len(snapshot(engine.engine, 0.0).lanes) == 3
    engine.step()
    phases = [lane.phase.value for lane in snapshot(engine.engine, 0.0).lanes]
    assert phases == ["prefill", "queued", "queued"]


def test_no_token_is_in_a_snapshot() -> None:
    """The prompt is made of ids that no count of this engine reaches."""
    engine = driver(vocab_size=2_000_000)
    secret = list(range(1_000_000, 1_000_012))
    engine.add(new("a", secret, max_tokens=5, salt="987654321"))
    engine.step()
    text = str(asdict(snapshot(engine.engine, 0.0)))
    assert not any(str(token) in text for token in secret)
    assert "987654321" not in text


def test_a_large_pool_is_shown_in_fewer_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CELLS", 8)
    engine = driver(full(20))
    engine.add(new("a", 30, max_tokens=30))
    engine.step()
    (one,) = snapshot(engine.engine, 0.0).maps
    assert (one.num_blocks, one.blocks_per_cell, one.held) == (20, 3, 8)
    assert sorted(cells(one)) == [0, 1, 2]
    assert {users for users, _, _ in cells(one).values()} == {1}


def test_lanes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LANES", 3)
    engine = driver()
    for number in range(6):
        engine.add(new(f"r{number}", 9, max_tokens=9))
    engine.step()
    taken = snapshot(engine.engine, 0.0)
    assert [lane.request_id for lane in taken.lanes] == ["r0", "r1", "r2"]
    assert taken.stats.running == 6
    assert {lane for _, _, _, lane, _ in runs(taken.maps[0])} == {0, 1, 2, NO_LANE}
    assert taken.maps[0].held == sum(count for _, count, users, *_ in runs(taken.maps[0]) if users)
