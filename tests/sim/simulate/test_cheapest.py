"""The search for the cheapest setting: what it finds, what it leaves out, and how much it simulates for that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.config import EngineConfig
from headrace.errors import ConfigError, DoesNotFit
from headrace.plan.hardware_table import find_hardware
from headrace.sim.simulate.candidates import Candidate, find_candidates
from headrace.sim.simulate.cheapest import CheapestSearch, fewest
from headrace.sim.simulate.load import Load, Service
from headrace.sim.simulate.run import Simulation
from headrace.sim.simulate.search import Promise
from headrace.sim.simulate.tally import Tally
from headrace.sim.simulate.times import CostTimes, MeteredTimes
from headrace.sim.workload.arrivals import Arrivals
from headrace.sim.workload.sessions import Lengths, Workload

SMALL = EngineConfig(model="shape:smollm2-135m", max_num_seqs=16)
LOAD = Load(Workload(Lengths.fixed(100), Lengths.fixed(20)), Arrivals(400.0), count=60)
PROMISE = Promise(ttft=0.03, tpot=0.004, share=0.9)


def candidates(prices: dict[str, float], formats: Sequence[str] | None = None) -> list[Candidate]:
    machines = [find_hardware(name) for name in prices]
    return find_candidates(SMALL, machines, prices, formats)[0]


class Searched:
    """A search that has run, and what it simulated."""

    def __init__(self, found: Sequence[Candidate], load: Load = LOAD, promise: Promise = PROMISE) -> None:
        self.names: list[str] = []
        self.promise, self.load = promise, load
        self.search = CheapestSearch(found, load, promise, Service, self._run)
        self.search.search()

    def _run(self, simulation: Simulation, name: str) -> Tally:
        self.names.append(name)
        return simulation.run()

    def broken(self, candidate: Candidate, machines: int) -> str | None:
        """What this many machines break, without the search."""
        service = Service(candidate.deployment, machines * candidate.copies)
        return self.promise.broken(service.simulation(self.load, self.promise.slo).run())


@pytest.mark.parametrize("most", [1, 7, 100])
@pytest.mark.parametrize("start", [1, 6, 90])
def test_fewest_is_the_smallest_that_keeps(start: int, most: int) -> None:
    for least in range(1, 130):
        tried: list[int] = []

        def keeps(count: int, least: int = least, tried: list[int] = tried) -> bool:
            tried.append(count)
            return count >= least

        assert fewest(keeps, start, most) == (least if least <= most else None)
        assert len(tried) == len(set(tried)) <= 14 and all(1 <= count <= most for count in tried)
        assert least == 1 or least > most or least - 1 in tried


def test_the_fewest_machines_that_keep_the_promise() -> None:
    searched = Searched(candidates({"l4": 0.8, "t4": 0.3}, ["stored", "int8"]))
    best = searched.search.best
    assert [one.cost_per_hour for one in best] == sorted(one.cost_per_hour for one in best)
    assert any(one.machines > 1 for one in best)
    for one in best:
        assert searched.broken(one.candidate, one.machines) is None
        if one.machines > 1:
            assert searched.broken(one.candidate, one.machines - 1) is not None
        assert (one.fewer is None) == (one.machines == 1)
        assert one.fewer is None or "s were promised, of the first " in one.fewer


def test_costs_add_up_to_the_price_of_the_machines() -> None:
    (one,) = Searched(candidates({"l4": 0.8}, ["stored"])).search.best
    requests = LOAD.arrivals.rate_per_s * 3600
    assert one.requests_per_day == pytest.approx(requests * 24)
    paid = requests * (100 * one.cost_per_million_input + 20 * one.cost_per_million_output) / 1e6
    assert paid == pytest.approx(one.cost_per_hour) and 0 < one.prompt_share < 1
    assert one.cost_per_hour == pytest.approx(one.machines * 0.8)
    assert one.within == pytest.approx(one.tally.within / 60)


def test_prompts_are_metered_and_steps_take_as_long() -> None:
    (candidate,) = candidates({"l4": 0.8}, ["stored"])
    cost = candidate.deployment.cost
    alone = Service(candidate.deployment).simulation(replace(LOAD, count=1))
    alone.times = times = MeteredTimes(cost)
    alone.run()
    assert times.prompts_s == pytest.approx(cost.prefill_s(100))
    crowd = Service(candidate.deployment).simulation(LOAD)
    assert isinstance(crowd.times, CostTimes) and not isinstance(crowd.times, MeteredTimes)
    plain = crowd.run().values()
    crowd = Service(candidate.deployment).simulation(LOAD)
    crowd.times = times = MeteredTimes(cost)
    assert crowd.run().values() == plain
    assert 0 < times.prompts_s < crowd.busy_s


def test_what_is_too_slow_alone_is_simulated_once() -> None:
    slow = Promise(tpot=0.002, share=0.9)
    searched = Searched(candidates({"h100": 2.0, "t4": 0.1}, ["stored"]), promise=slow)
    assert [one.candidate.machine.name for one in searched.search.best] == ["h100"]
    assert [name for name in searched.names if "t4" in name] == ["bfloat16 on t4, alone"]
    ((out, why),) = searched.search.left_out
    assert out.machine.name == "t4" and "that are alone, TPOT p90" in why


def test_what_costs_more_is_not_simulated_under_load() -> None:
    searched = Searched(candidates({"l4": 0.8, "h100": 50.0}, ["stored", "int8", "fp8"]))
    assert {one.candidate.machine.name for one in searched.search.best} == {"l4"}
    assert all(name.endswith("alone") for name in searched.names if "h100" in name)


def test_equal_engines_are_simulated_once() -> None:
    found = candidates({"l4": 0.8, "2xl4": 1.6}, ["stored"])
    assert [(one.machine.label, one.tp, one.copies) for one in found] == [("l4", 1, 1), ("2xl4", 1, 2)]
    searched = Searched(found)
    assert sum("alone" in name for name in searched.names) == 1
    assert len(searched.names) == len(set(searched.names)) == searched.search.simulations


def test_of_equal_cost_more_bits_are_better() -> None:
    searched = Searched(candidates({"h100": 2.0}), replace(LOAD, arrivals=Arrivals(1.0)))
    assert [one.candidate.format for one in searched.search.best] == ["stored", "int8", "fp8"]
    assert {one.machines for one in searched.search.best} == {1}


def test_devices_share_layers_where_heads_allow_it() -> None:
    config = EngineConfig(model="shape:llama-3.1-8b", max_model_len=1024)
    found, refused = find_candidates(config, [find_hardware("4xl4")], {"4xl4": 3.0}, ["stored"])
    assert [(one.tp, one.copies) for one in found] == [(1, 4), (2, 2), (4, 1)] and not refused
    assert found[2].describe().endswith("on 4xl4, TP 4")
    _, refused = find_candidates(SMALL, [find_hardware("2xl4")], {"2xl4": 1.0}, ["stored"])
    assert [one.name for one in refused] == ["stored on 2xl4, TP 2"] and "KV heads" in str(refused[0].error)


def test_a_model_that_is_too_large_is_refused_with_the_reason() -> None:
    config = EngineConfig(model="shape:llama-3.1-70b")
    found, refused = find_candidates(config, [find_hardware("l4")], {"l4": 1.0}, ["stored", "int4-a16"])
    assert not found and all(isinstance(one.error, DoesNotFit) for one in refused)
    assert re.fullmatch(
        r"the weights need 3\d\.\d GiB in int4-a16, but 20\.1 GiB of memory is available; .*",
        str(refused[1].error),
    )


def test_every_candidate_serves_the_same_requests() -> None:
    whole, *_ = candidates({"l4": 0.8}, ["stored"])
    settings = {**whole.deployment.settings, "max_model_len": 500}
    short = replace(whole, format="int8", deployment=replace(whole.deployment, settings=settings))
    chats = replace(LOAD, workload=Workload(outputs=Lengths.fixed(20)))
    searched = Searched([short, whole], chats)
    assert [one.candidate for one in searched.search.best] == [whole]
    assert "holds sequences of 500 tokens" in searched.search.left_out[0][1]


@pytest.mark.long
def test_a_load_without_a_length_gets_one_for_each_candidate() -> None:
    found = candidates({"l4": 0.8}, ["stored"])
    open_load = replace(LOAD, count=None, arrivals=Arrivals(5.0))
    search = CheapestSearch(found, open_load, PROMISE, Service, lambda simulation, name: simulation.run())
    search.search()
    (one,) = search.best
    assert 900 < one.tally.answered < 1100 and one.requests_per_day == 5.0 * 86_400


def test_an_interrupted_search_keeps_what_it_found() -> None:
    names: list[str] = []

    def run(simulation: Simulation, name: str) -> Tally:
        if search.best:
            raise KeyboardInterrupt
        names.append(name)
        return simulation.run()

    search = CheapestSearch(candidates({"l4": 0.8}, ["stored", "int8"]), LOAD, PROMISE, Service, run)
    with pytest.raises(KeyboardInterrupt):
        search.search()
    (one,) = search.best
    assert any(name.startswith(one.candidate.describe()) for name in names)


def test_nothing_keeps_it() -> None:
    searched = Searched(
        candidates({"l4": 0.8}, ["stored", "int8"]), promise=Promise(ttft=1e-4, tpot=1e-4, share=0.9)
    )
    assert not searched.search.best and all(name.endswith("alone") for name in searched.names)
    problem = searched.search.problem()
    assert problem.startswith("no setting keeps a TTFT of 0.0001 s and a TPOT of 0.0001 s each for 90 %")
    assert "the nearest is" in problem and "of requests that are alone, 90 % have a TTFT of 0.0" in problem


def test_a_burst_that_no_number_of_replicas_serves_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.sim.simulate.deploy.MOST_REPLICAS", 2)
    prices = {"t4": 0.1, "l4": 0.8, "a10g": 1.0}
    searched = Searched(
        candidates(prices, ["stored"]), replace(LOAD, arrivals=Arrivals()), Promise(ttft=0.03)
    )
    assert not searched.search.best
    waits = {}
    for candidate in searched.search.candidates:
        served = Service(candidate.deployment, 2).simulation(replace(LOAD, arrivals=Arrivals())).run()
        waits[candidate.machine.name] = served.ttft.percentile(0.99)
    nearest = min(waits, key=lambda name: waits[name])
    assert nearest != searched.search.left_out[0][0].machine.name  # not the one that is tried first
    assert f"on {nearest} with 2 replicas: TTFT p99 is" in searched.search.problem()


def test_a_load_that_is_too_large_is_refused_before_the_work() -> None:
    found = candidates({"l4": 0.8}, ["stored"])
    for load in (replace(LOAD, count=None, arrivals=Arrivals(1e6)), replace(LOAD, count=10**6)):
        with pytest.raises(ConfigError, match="simulates up to 100,000 requests"):
            CheapestSearch(found, load, PROMISE, Service, lambda simulation, name: simulation.run())
