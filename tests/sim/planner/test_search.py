"""The search: what it keeps, how it ranks, and what it says where nothing keeps a promise."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from headrace.errors import ConfigError
from headrace.plan.hardware import Machine
from headrace.plan.hardware_table import find_hardware, this_hardware
from headrace.plan.units import GIB
from headrace.sim.planner.command import serve_options, start_command
from headrace.sim.planner.formats import store
from headrace.sim.planner.memory import Footprint, Placement
from headrace.sim.planner.model import PlannedModel, open_model
from headrace.sim.planner.money import bill, read_prices
from headrace.sim.planner.overview import Question, make_overview
from headrace.sim.planner.search import BATCHES, Promise, search
from headrace.sim.planner.speed import Speeds, Traffic
from headrace.sim.work import SliceShape

H100, L4 = find_hardware("h100"), find_hardware("l4")
LOAD = Traffic(1000, 200)


@functools.cache
def llama() -> PlannedModel:
    return open_model("shape:llama-3.1-8b")


def test_every_setting_keeps_the_promise_and_fits() -> None:
    promise = Promise(users=300, ttft_s=0.2, tpot_s=0.03)
    found = search([llama()], [H100, L4], LOAD, promise)
    assert 1 <= len(found.settings) <= 3 and found.tried > 50
    for one in found.settings:
        assert one.point.ttft_s <= 0.2 and one.point.tpot_s <= 0.03
        assert one.footprint.fits(one.point.batch, LOAD.context)
        assert one.sequences >= 300 > one.point.batch * one.copies * (one.machines - 1)


@pytest.mark.parametrize("batch", [4, 5, 7, 8])
def test_a_pipeline_serves_no_more_than_what_is_in_flight(batch: int) -> None:
    machine = find_hardware("4xa10g")
    point = (
        Speeds().of(Footprint(store(llama(), machine, "int8"), machine, Placement(pp=4))).point(batch, LOAD)
    )
    assert point.output_per_s == pytest.approx(batch / point.tpot_s)


def test_fewer_machines_come_first_and_then_more_tokens() -> None:
    found = search([llama()], [H100], LOAD, Promise(users=300))
    counts = [one.machines for one in found.settings]
    assert counts == sorted(counts)
    assert len({one.stored.format for one in found.settings}) == len(found.settings)


def test_prices_decide_where_there_are_some() -> None:
    machines = (H100, L4)
    for cheap, dear in (("h100", "l4"), ("l4", "h100")):
        prices = {cheap: 0.01, dear: 10.0}
        found = search([llama()], machines, LOAD, Promise(users=8), prices=prices)
        assert found.settings[0].hardware.label == cheap
        gains = [one.tokens_per_unit or 0.0 for one in found.settings]
        assert all(later <= earlier * 1.04 for earlier, later in pairwise(gains))


def test_a_smaller_model_is_the_better_one_where_size_does_not_count() -> None:
    small = open_model("shape:llama-3.2-1b")
    found = search([llama(), small], [L4], LOAD, Promise(users=64))
    assert found.settings[0].stored.model is small


def test_requests_of_a_day_become_machine_hours_and_prefix_hits_save_some() -> None:
    promise = Promise(requests_per_day=1e6)
    hours = []
    for hit in (0.0, 0.5, 0.9):
        load = Traffic(4000, 100, hit)
        found = search([llama()], [H100], load, promise, prices={"h100": 2.0}, formats=("stored",))
        one = found.settings[0]
        assert one.machine_hours is not None and one.busy_cost == pytest.approx(2.0 * one.machine_hours)
        assert one.daily_cost == 48.0 * one.machines and one.machines == -(-one.machine_hours // 24)
        rate = one.point.requests_per_s * one.copies
        assert one.machine_hours == pytest.approx(1e6 / rate / 3600)
        hours.append(one.machine_hours)
    assert hours[0] > 1.5 * hours[1] > 1.5 * hours[2]


def test_a_bill_adds_up() -> None:
    speed = Speeds().of(Footprint(store(llama(), H100), H100, Placement()))
    point = speed.point(64, LOAD)
    one = bill(point, LOAD, 2, 3.6, 700.0)
    assert one.output is not None and one.input is not None and one.joules is not None
    requests = point.requests_per_s * 2
    each_hour = requests * 3600 * (LOAD.output * one.output + LOAD.prompt * one.input) / 1e6
    assert each_hour == pytest.approx(3.6)
    assert one.joules * requests * LOAD.output == pytest.approx(700.0)


def test_steady_state_takes_all_the_time() -> None:
    """A second of the devices goes into steps and prompts, and nothing else."""
    speed = Speeds().of(Footprint(store(llama(), H100), H100, Placement()))
    for batch in (1, 16, 128):
        point = speed.point(batch, LOAD)
        steps = point.requests_per_s * LOAD.output / batch
        assert steps * point.decode_s + point.requests_per_s * point.prefill_s == pytest.approx(1.0)
        assert point.tpot_s == pytest.approx(1 / steps)
        assert point.ttft_s > point.prefill_s + point.decode_s


def test_the_bend_is_where_bytes_and_operations_meet() -> None:
    speed = Speeds().of(Footprint(store(llama(), H100), H100, Placement()))
    bend = speed.bend(0)
    assert bend is not None
    profile, work = speed.profile, speed.costs.work

    def limits(batch: int) -> tuple[float, float]:
        step = work.step((SliceShape(1, 0, 1),) * batch)
        compute = sum(count / profile.peak(name) for name, count in step.operations.items())
        return step.bytes / profile.bandwidth(), compute

    memory, compute = limits(bend)
    assert compute >= memory * 0.98
    memory, compute = limits(bend - 10)
    assert compute < memory
    assert speed.bend(8192) is None  # KV of this length is read longer than it is multiplied


def test_what_is_said_to_be_the_nearest_is_kept() -> None:
    promise = Promise(ttft_s=1e-3, tpot_s=1e-4)
    question = Question((llama(),), (L4,), LOAD, promise)
    problem = make_overview(question).problem
    assert problem is not None and problem.startswith(
        "no setting keeps a TTFT of 0.001 s and a TPOT of 0.0001 s"
    )
    said = re.search(r"a TTFT of ([\d.]+) s and a TPOT of ([\d.]+) s$", problem)
    assert said is not None
    possible = replace(question, promise=Promise(ttft_s=float(said[1]), tpot_s=float(said[2])))
    assert make_overview(possible).problem is None


def test_what_does_not_fit_says_by_how_much_and_where_it_would() -> None:
    question = Question((open_model("shape:llama-2-70b"),), (L4,), Traffic(1024, 256))
    overview = make_overview(question)
    assert overview.shown.speed is None and not overview.found.settings
    problem = overview.problem or ""
    assert "does not fit l4: in int4-a16" in problem and "more than there is" in problem
    larger = re.search(r"holds it is (\S+), in int4-a16$", problem)
    assert larger is not None
    fits = make_overview(replace(question, machines=(find_hardware(larger[1]),)))
    assert fits.problem is None


def test_longer_than_the_context() -> None:
    with pytest.raises(ConfigError, match="longer than the context of 131072 tokens"):
        search([llama()], [H100], Traffic(131_072, 1), Promise())


def test_the_command_gives_the_engine_what_was_planned() -> None:
    machine = this_hardware(
        Machine("cpu", "CPU", 64 * GIB, 64 * GIB, 2, flags=frozenset({"avx512_bf16"}), kernels=("avx512",))
    )
    found = search([open_model("shape:smollm2-135m")], [machine], LOAD, Promise(users=20))
    one = found.settings[0]
    options = serve_options(one, LOAD.context)
    assert options["--max-num-seqs"] == str(one.point.batch) and options["--max-model-len"] == "1200"
    size = int(options["--kv-cache-memory"].removesuffix("MiB")) << 20
    assert 0 <= size - one.footprint.kv(one.point.batch, 1200) < 1 << 20
    command, note = start_command(one, LOAD.context)
    assert command is not None and command.startswith("headrace serve shape:smollm2-135m --") and not note


def test_gpus_and_several_devices_have_no_command() -> None:
    found = search([llama()], [H100], LOAD, Promise())
    assert start_command(found.settings[0], 1200) == (
        None,
        "no command: this version runs models on CPUs, and plans for GPUs",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h100=2,l4=0.5", {"h100": 2.0, "l4": 0.5, "4xl4": 2.0}),
        ("h100=2, l4=0.5, 4xl4=1.5", {"h100": 2.0, "l4": 0.5, "4xl4": 1.5}),
        ("l4=1", {"l4": 1.0, "4xl4": 4.0}),
        (None, {}),
    ],
)
def test_prices(text: str | None, expected: dict[str, float]) -> None:
    assert read_prices(text, (H100, L4, L4.times(4))) == expected


@pytest.mark.parametrize(
    "text", ["0", "-1", "nan", "inf", "free", "h100=", "h101=2", "h100=2,3", "1e-320", "h100=2,h100=3"]
)
def test_prices_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        read_prices(text, (H100,))


def test_a_price_of_a_machine_that_is_not_asked_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="l4, which is none of the machines asked for: h100"):
        read_prices("h100=2,l4=1", (H100,))
    with pytest.raises(ConfigError, match="4xl4, which is none"):
        read_prices("4xl4=1", (L4,))


def test_one_price_for_several_machines() -> None:
    with pytest.raises(ConfigError, match="h100=2,l4="):
        read_prices("2", (H100, L4))
    assert read_prices("2", (H100,)) == {"h100": 2.0} and tuple(sorted(BATCHES)) == BATCHES
