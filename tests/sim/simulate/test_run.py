"""Replicas, routers and failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.bench.measure import percentile, run_workload
from headrace.bench.workload import Arrival
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.sim.simulate.executor import Drafts
from headrace.sim.simulate.failures import Failures
from headrace.sim.simulate.replica import Replica
from headrace.sim.simulate.router import prefix_keys
from headrace.sim.simulate.run import Simulation
from headrace.sim.simulate.tally import Distribution, Tally
from headrace.sim.workload.sessions import Lengths, Workload
from headrace.sim.workload.slo import SLO
from tests.sim.simulate.harness import WORKLOAD, ExactTimes, Watch, asks, simulation


def ran(run: Simulation) -> tuple[Tally, dict[str, Any]]:
    tally = run.run()
    assert isinstance(run.observer, Watch)
    return tally, run.observer.ends


def test_every_request_gets_the_length_that_it_asked_for() -> None:
    requests = asks(40, rate=50.0)
    tally, ends = ran(simulation(requests))
    assert (tally.sent, tally.answered, tally.failed, tally.refused) == (40, 40, 0, 0)
    expected = {ask.key: (len(ask.prompt), ask.output_tokens) for ask in requests.first()}
    assert {key: (stats.num_prompt, stats.num_output) for key, (_, stats) in ends.items()} == expected
    assert tally.output_tokens == sum(output for _, output in expected.values())
    for _, stats in ends.values():
        assert stats.arrival_s <= stats.first_scheduled_s < stats.first_token_s <= stats.finished_s


def test_a_request_alone_takes_the_time_of_its_steps() -> None:
    """A prompt of 100 tokens in two steps of 64 and 36, then 4 steps of one token."""
    workload = Workload(Lengths.fixed(100), Lengths.fixed(5))
    tally, ends = ran(simulation(asks(1, workload=workload)))
    times, stats = ExactTimes(), ends["sim-0"][1]
    prefill = (1000 + 50 * 64 + 64 + 1000 + 50 * 36 + 100) * 2.0**-20
    decode = [step for keys in range(101, 105) for step in times.steady_s(1, keys, 1)]
    assert stats.first_token_s == prefill and stats.finished_s == prefill + sum(decode)
    values = tally.values()
    assert values["ttft_p50_s"] == pytest.approx(prefill, rel=6e-4)
    assert values["tpot_p99_s"] == pytest.approx(sum(decode) / 4, rel=6e-4)
    assert values["itl_p50_s"] == pytest.approx(decode[1], rel=6e-4) and tally.itl.count == 4
    assert values["e2e_p90_s"] == pytest.approx(prefill + sum(decode), rel=6e-4)


def test_distributions_are_those_of_the_values() -> None:
    values = [1.37**step * 1e-4 for step in range(30)] + [0.0]
    found = Distribution()
    for value in values:
        found.add(value)
    for share in (0.01, 0.3, 0.5, 0.9, 0.99, 1.0):
        assert found.percentile(share) == pytest.approx(percentile(values, share), rel=6e-4)
    assert found.count == 31 and found.total == pytest.approx(sum(values))
    again = Distribution()
    again.add_rising(values[:30], 3)
    again.add(0.0, 3)
    assert [again.percentile(share / 10) for share in range(11)] == [
        found.percentile(s / 10) for s in range(11)
    ]


def test_figures_are_those_of_a_benchmark_of_the_same_engine() -> None:
    """Counts and hit rate of `run_workload`; times differ, as that one has a real clock."""
    workload = replace(WORKLOAD, prefixes=2, prefix_tokens=50)
    requests = list(asks(30, workload=workload, rate=1e5).first())
    run = simulation(asks(30, workload=workload, rate=1e5))
    tally = run.run()
    engine, executor = run.make_engine()
    measured = run_workload(engine, executor, [
        Arrival(0.0, NewRequest(ask.key, ask.prompt, SamplingParams(max_tokens=ask.output_tokens, ignore_eos=True)))
        for ask in requests
    ])  # fmt: skip
    assert (tally.answered, tally.prompt_tokens) == (measured.requests, measured.prompt_tokens)
    assert tally.output_tokens == measured.output_tokens
    assert tally.itl.count == len(measured.itl_s)
    assert measured.hit_rate > 0
    assert tally.cached_tokens / tally.prompt_tokens == pytest.approx(measured.hit_rate, abs=0.1)


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 1.0])
def test_drafts_are_right_as_often_as_asked(acceptance: float) -> None:
    workload = Workload(Lengths.fixed(20), Lengths.fixed(200))
    run = simulation(asks(8, workload=workload), drafts=Drafts(3, acceptance), max_num_batched_tokens=256)
    run.run()
    stats = run.replicas[0].engine.stats().scheduler
    assert stats.output_tokens == 1600
    share = stats.accepted_at[0] / stats.drafts
    assert share == pytest.approx(acceptance, abs=0.05 if acceptance == 0.5 else 0.0)
    if acceptance == 1.0:
        assert stats.steps < 200 / 2.5
    if acceptance == 0.5:
        assert stats.accepted_tokens / stats.drafts == pytest.approx(0.5 + 0.25 + 0.125, abs=0.08)


def test_targets_and_server_overhead() -> None:
    workload = Workload(Lengths.fixed(10), Lengths.fixed(10))
    slow, fast = Tally(SLO(ttft=0.01)), Tally(SLO(ttft=0.01), server_s=0.02)
    ran(simulation(asks(10, workload=workload, rate=20.0), tally=slow))
    ran(simulation(asks(10, workload=workload, rate=20.0), tally=fast))
    assert slow.values()["within_slo"] == 1.0 and fast.values()["within_slo"] == 0.0
    assert fast.ttft.total - slow.ttft.total == pytest.approx(0.2)


# ---- several replicas ----


def test_round_robin_takes_turns() -> None:
    _, ends = ran(simulation(asks(12), options={"num_replicas": 3}))
    assert [ends[f"sim-{number}"][0] for number in range(12)] == [0, 1, 2] * 4


def test_the_least_loaded_replica_is_chosen() -> None:
    """A long request at one of two replicas; short ones come when the others have ended."""
    long, short = Lengths.fixed(100), Workload(Lengths.fixed(5), Lengths.fixed(2))
    requests = asks(9, workload=short, rate=20.0)
    made = list(requests.first())
    made[0] = replace(made[0], output_tokens=long.high * 4)

    class Given:
        def first(self) -> Any:
            return iter(made)

        def after(self, ask: Any, now: float) -> None:
            return None

    _, ends = ran(simulation(Given(), router="least-loaded", options={"num_replicas": 2}))
    first = ends["sim-0"][0]
    assert all(ends[f"sim-{number}"][0] != first for number in range(1, 9))


def test_prefix_aware_routing_brings_prefixes_back_to_their_replica() -> None:
    workload = Workload(Lengths.fixed(8), Lengths.fixed(4), prefixes=4, prefix_tokens=256)
    hits = {}
    for router in ("round-robin", "prefix-aware"):
        run = simulation(
            asks(80, workload=workload, rate=30.0), router=router, blocks=60, options={"num_replicas": 4},
        )  # fmt: skip
        tally, ends = ran(run)
        assert tally.answered == 80
        hits[router] = tally.cached_tokens
        assert len({replica for replica, _ in ends.values()}) > 1
    assert hits["prefix-aware"] > 1.2 * hits["round-robin"] > 0


def test_prefix_keys_are_those_of_whole_pieces() -> None:
    prompt = tuple(range(200))
    assert len(prefix_keys(prompt)) == 3
    assert prefix_keys(prompt)[:2] == prefix_keys((*prompt[:128], 5, 5))[:2]
    assert prefix_keys((7, *prompt[1:]))[1] != prefix_keys(prompt)[1]


def test_a_full_replica_refuses() -> None:
    workload = Workload(Lengths.fixed(5), Lengths.fixed(50))
    tally, _ = ran(simulation(asks(20, workload=workload, burst=20), options={"most_waiting": 6}))
    assert (tally.sent, tally.answered, tally.refused) == (20, 6, 14)


def test_requests_that_the_engine_does_not_take_fail_alone() -> None:
    workload = Workload(Lengths(200, 1.0, 1, 2000), Lengths.fixed(5))
    tally, _ = ran(simulation(asks(30, workload=workload)))
    assert tally.answered + tally.failed == 30 and tally.failed > 0
    assert all("context holds 512" in reason for reason in tally.reasons)


# ---- failures ----


@pytest.mark.parametrize("skipping", [True, False])
def test_requests_of_a_failed_replica_are_sent_again(skipping: bool) -> None:
    run = simulation(
        asks(200, rate=300.0), router="least-loaded",
        options={"num_replicas": 3, "failures": Failures(0.2, 0.1), "retries": 50, "skipping": skipping},
    )  # fmt: skip
    tally, ends = ran(run)
    assert tally.answered == len(ends) == 200 and tally.failed == 0
    assert tally.outages > 2 and tally.retries > 5
    assert all(stats.first_token_s > stats.arrival_s for _, stats in ends.values())
    assert tally.output_tokens == sum(ask.output_tokens for ask in asks(200, rate=300.0).first())


def test_failures_are_the_same_with_and_without_skipping() -> None:
    found = []
    for skipping in (True, False):
        options = {"num_replicas": 2, "failures": Failures(0.3, 0.05), "skipping": skipping}
        tally, ends = ran(simulation(asks(100, rate=200.0), options=options))
        found.append((tally.values(), ends, tally.outages, tally.retries))
    assert found[0] == found[1] and found[0][2] > 0


def test_a_failed_replica_is_empty_and_its_work_counts() -> None:
    seen = []

    class Look(Watch):
        def tick(self, now: float, replicas: list[Replica]) -> None:
            seen.extend(
                (replica.is_up, len(replica.engine.scheduler.running), replica.unfinished)
                for replica in replicas
            )

    options = {"num_replicas": 3, "failures": Failures(0.2, 0.1), "retries": 50}
    run = simulation(asks(200, rate=300.0), router="least-loaded", observer=Look(0.02), options=options)
    tally = run.run()
    calm = simulation(asks(200, rate=300.0), router="least-loaded", options={"num_replicas": 3})
    calm.run()
    down = [loads for is_up, *loads in seen if not is_up]
    assert tally.outages and down and all(loads == [0, 0] for loads in down)
    assert run.busy_s > 0.6 * calm.busy_s  # batches differ


def test_a_request_fails_after_too_many_retries() -> None:
    options = {"num_replicas": 2, "failures": Failures(0.05, 0.05), "retries": 1}
    tally, _ = ran(simulation(asks(100, rate=300.0), options=options))
    assert tally.failed > 0 and tally.answered + tally.failed == 100
    assert set(tally.reasons) == {"the replica failed, as did those before it"}


def test_requests_wait_while_every_replica_is_down() -> None:
    options = {"num_replicas": 1, "failures": Failures(0.2, 0.5), "retries": 1000}
    tally, _ = ran(simulation(asks(30, rate=100.0), options=options))
    assert tally.answered == 30 and tally.outages > 0
    assert tally.values()["ttft_p99_s"] > 0.1
