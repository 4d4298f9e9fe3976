"""Steps run many at once leave everything as the same steps run one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.core.policy import Batching, Order, Victim
from headrace.core.types import KVGroupSpec, Retention
from headrace.sim.simulate.executor import Drafts
from headrace.sim.simulate.run import Simulation
from headrace.sim.workload.sessions import Lengths, Workload
from tests.sim.simulate.harness import WORKLOAD, Watch, asks, simulation


def state(run: Simulation) -> dict[str, Any]:
    """All that can be seen of a simulation when it has ended."""
    assert isinstance(run.observer, Watch)
    engines = [replica.engine for replica in run.replicas]
    return {
        "ends": run.observer.ends,
        "stats": [engine.stats() for engine in engines],
        "free": [[pool.free_order() for pool in engine.scheduler.kv.pools] for engine in engines],
        "findable": [
            sorted(engine.scheduler.kv.cache.findable(0)) for engine in engines if engine.scheduler.kv.cache
        ],
        "served": [engine.scheduler.service.served("") for engine in engines],
        "steps": [replica.steps + replica.skipped for replica in run.replicas],
        "busy": [replica.busy_s for replica in run.replicas],
        "figures": run.tally.values(),
    }


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no prefix cache": {"prefix_caching": False},
    "blocks run out": {"blocks": 24},
    "blocks run out, cheapest victim": {"blocks": 24, "victim": Victim.CHEAPEST, "prefix_caching": False},
    "places run out": {"max_num_seqs": 3},
    "one token a block": {"block_size": 1, "blocks": 700},
    "odd blocks": {"block_size": 7, "blocks": 60},
    "one sequence": {"max_num_seqs": 1, "blocks": 40},
    "static batches": {"batching": Batching.STATIC, "batch_size": 4},
    "dynamic batches": {"batching": Batching.DYNAMIC, "batch_size": 4, "batch_wait_s": 0.0625},
    "whole prompts": {"chunked_prefill": False, "max_num_batched_tokens": 256},
    "priority": {"order": Order.PRIORITY},
    "two groups": {"groups": [KVGroupSpec("a", 90, 16), KVGroupSpec("b", 60, 16)]},
}
NEVER: dict[str, dict[str, Any]] = {
    "fair": {"order": Order.FAIR},
    "no KV cache": {"kv_cache": False, "max_num_batched_tokens": 2048},
    "drafts": {"drafts": Drafts(3, 0.7)},
    "window": {"groups": [KVGroupSpec("w", 90, 16, Retention.WINDOW, window=40)]},
}


def both(settings: dict[str, Any], **workload: Any) -> tuple[Simulation, Simulation]:
    runs = []
    for skipping in (True, False):
        run = simulation(asks(**workload), options={"skipping": skipping, "num_replicas": 2}, **settings)
        run.run()
        runs.append(run)
    assert runs[1].replicas[0].skipped == 0
    return runs[0], runs[1]


@pytest.mark.parametrize("name", SETTINGS)
def test_skipping_changes_nothing(name: str) -> None:
    at_once, one_by_one = both(SETTINGS[name])
    assert state(at_once) == state(one_by_one)
    assert sum(replica.skipped for replica in at_once.replicas) > 50
    stats = at_once.replicas[0].engine.stats()
    if "run out" in name and "blocks" in name:
        assert stats.scheduler.preemptions > 0
    if stats.cache is not None and name == "blocks run out":
        assert stats.cache.evictions > 0


@pytest.mark.parametrize("name", NEVER)
def test_what_cannot_be_skipped_runs_step_by_step(name: str) -> None:
    at_once, one_by_one = both(NEVER[name], count=20)
    assert state(at_once) == state(one_by_one)
    assert all(replica.skipped == 0 for replica in at_once.replicas)


def test_conversations_find_what_was_said_before() -> None:
    workload = replace(WORKLOAD, turns=3, prefixes=2, prefix_tokens=40)
    at_once, one_by_one = both({"blocks": 400}, count=20, workload=workload, pause_s=0.03125)
    assert state(at_once) == state(one_by_one)
    ends = at_once.observer.ends  # type: ignore[union-attr]
    assert len(ends) == 60 and sum(replica.skipped for replica in at_once.replicas) > 50
    cached = {key: stats.num_cached for key, (_, stats) in ends.items()}
    assert sum(count for key, count in cached.items() if key.endswith("-2")) > 20 * 40
    assert sum(count for key, count in cached.items() if key.count("-") == 1) > 0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_waiting_request_joins_as_soon_as_the_prefix_cache_knows_more_of_it(seed: int) -> None:
    """Long answers, prompts that begin with them, and few blocks: the waiting one is refused for lack of blocks."""
    workload = Workload(Lengths(20, 0.5, 1, 60), Lengths(60, 0.5, 10, 150), turns=2)
    settings = {"blocks": 28, "block_size": 8, "max_num_seqs": 6}
    at_once, one_by_one = both(settings, count=40, workload=workload, rate=2000.0, seed=seed)
    assert state(at_once) == state(one_by_one)
    assert at_once.replicas[0].engine.stats().scheduler.preemptions > 0
    assert sum(replica.skipped for replica in at_once.replicas) > 50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_skipping_changes_nothing_at_any_load(seed: int) -> None:
    settings = [*SETTINGS.values()][seed % len(SETTINGS)]
    at_once, one_by_one = both(
        settings, count=150, rate=20.0 * 2 ** (seed % 7), seed=seed, burst=1 + seed % 3
    )
    assert state(at_once) == state(one_by_one)
