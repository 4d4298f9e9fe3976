"""`headrace simulate --search cheapest`: the settings that keep a promise at the lowest cost."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from headrace.cli.engine_flags import engine_config, engine_options, engine_words
from headrace.cli.planning.simulate_runs import (
    CHEAPEST,
    counted,
    load_of,
    promise_of,
    run_simulation,
    service_of,
)
from headrace.cli.planning.workload_flags import describe_lengths, described
from headrace.errors import ConfigError, DoesNotFit

if TYPE_CHECKING:
    from headrace.bench.report import Row
    from headrace.config import EngineConfig
    from headrace.plan.hardware import Hardware
    from headrace.sim.simulate.candidates import Refused
    from headrace.sim.simulate.cheapest import CheapestSearch
    from headrace.sim.simulate.deploy import Deployment
    from headrace.sim.simulate.load import Load
    from headrace.sim.simulate.run import Simulation
    from headrace.sim.simulate.setting import Setting
    from headrace.sim.simulate.tally import Tally

ALL = "all"
MOST_MACHINES = 8
INTERRUPTED = 130


def add_cheapest_flags(group: argparse._ActionsContainer) -> None:
    """What only a search for the cheapest setting takes."""
    group.add_argument(
        "--price-per-hour", metavar="PRICE",
        help="for cheapest: of the machine, in any currency; of several: h100=2.5,4xa10g=3, where a device's price "
        "counts for each",
    )  # fmt: skip
    group.add_argument(
        "--formats", metavar="LIST",
        help="for cheapest: formats of weights to choose from, with commas between: stored, and names of "
        "--quantization (default: stored, int8, int4 on CPUs; stored, fp8, int8, int4-a16 on GPUs)",
    )  # fmt: skip


def check_cheapest(args: argparse.Namespace) -> None:
    """Raises ConfigError for options that go with this search alone, or not with it."""
    if args.search != CHEAPEST:
        for flag in ("price_per_hour", "formats"):
            if getattr(args, flag) is not None:
                raise ConfigError(f"--{flag.replace('_', '-')} goes with --search cheapest")
        if "," in args.hardware:
            raise ConfigError("--hardware takes several machines with --search cheapest alone: name one")
        return
    if args.replicas != 1:
        raise ConfigError("--search cheapest finds the number of replicas: leave --replicas out")
    if args.formats is not None and getattr(args, "quantization", None) is not None:
        raise ConfigError(
            "--quantization is one format, and --formats several to choose from: give one of them"
        )


def run_cheapest(args: argparse.Namespace, rate: float) -> int:
    """Search, and print the best settings; the status is 1 where nothing keeps the promise."""
    from headrace.bench.report import make_report
    from headrace.sim.planner.money import read_prices
    from headrace.sim.simulate.candidates import find_candidates
    from headrace.sim.simulate.cheapest import CheapestSearch

    begin = time.perf_counter()
    config, machines = engine_config(args), _machines(args.hardware)
    prices = read_prices(args.price_per_hour, machines)
    _check_prices([machine.label for machine in machines if machine.label not in prices], machines)
    load = load_of(args) if args.trace else load_of(args).at_rate(rate)
    formats = None if args.formats is None else [name.strip() for name in args.formats.split(",")]
    candidates, refused = find_candidates(config, machines, prices, formats)
    if not candidates:
        raise ConfigError(_nothing_fits(config, refused, load, formats))
    requests = 0

    def run(simulation: Simulation, name: str) -> Tally:
        nonlocal requests
        run_simulation(simulation, f"{search.done} of {len(candidates)} settings; {name}", None, [])
        requests += simulation.tally.sent
        return simulation.tally

    search = CheapestSearch(
        candidates, load, promise_of(args), lambda one: service_of(args, one, config.seed), run
    )
    complete = True
    try:
        search.search()
    except KeyboardInterrupt:
        if not search.best:
            raise
        complete = False
    if not search.best:
        raise ConfigError(search.problem())
    left_out = {one.name: str(one.error) for one in refused}
    left_out |= {candidate.describe(): why for candidate, why in search.left_out}
    spent = time.perf_counter() - begin
    notes = [f"{counted(search.simulations, 'simulation')} of {requests:,} requests in {spent:.1f} s"]
    commands = [_command(args, setting) for setting in search.best]
    report = make_report(
        "simulate",
        [_row(setting, start) for setting, start in zip(search.best, commands, strict=True)],
        config=_config(args, config, search, prices, left_out),
        complete=complete,
        notes=notes,
    )
    if args.json != "-":
        print(_text(args, search, commands, left_out))
        print(*notes, *[] if complete else ["interrupted: these are the best settings until then"], sep="\n")
    if args.json:
        report.write(args.json)
    return 0 if complete else INTERRUPTED


def _machines(text: str) -> tuple[Hardware, ...]:
    from headrace.plan.hardware_table import find_hardware

    names = [name.strip() for name in text.split(",")]
    if ALL in [name.lower() for name in names]:
        raise ConfigError(
            f"--search cheapest simulates each machine many times: name up to {MOST_MACHINES} instead of all; "
            "`headrace plan --hardware all` compares all of them by formula"
        )
    machines = tuple({one.label: one for one in map(find_hardware, names)}.values())
    if len(machines) > MOST_MACHINES:
        raise ConfigError(
            f"--search cheapest compares up to {MOST_MACHINES} machines, and --hardware names {len(machines)}; "
            "`headrace plan` compares more of them by formula"
        )
    return machines


def _check_prices(missing: list[str], machines: tuple[Hardware, ...]) -> None:
    """Raises ConfigError for machines without a price."""
    if missing:
        every = ",".join(f"{machine.label}=PRICE" for machine in machines)
        raise ConfigError(
            f"there is no price for {', '.join(missing)}: --search cheapest needs what each machine costs an hour, as "
            f"in --price-per-hour {every if len(machines) > 1 else 'PRICE'}"
        )


def _nothing_fits(config: EngineConfig, refused: list[Refused], load: Load, formats: list[str] | None) -> str:
    """Why no engine can be deployed, in a sentence, with the smallest machine that holds the model."""
    from headrace.sim.planner.model import open_model
    from headrace.sim.planner.overview import holder
    from headrace.sim.planner.speed import Traffic

    last = max(
        reversed(refused), key=lambda one: one.machine.total_memory
    )  # formats begin with the widest one
    what = f"nothing can be deployed; {last.name}: {last.error}"
    if not isinstance(last.error, DoesNotFit):
        return what
    model = open_model(config.model)
    longest = min(config.max_model_len or model.spec.max_position, model.spec.max_position)
    inputs, outputs = load.workload.inputs, load.workload.outputs
    traffic = Traffic.within(longest, min(inputs.high, longest // 2), min(outputs.high, max(1, longest // 2)))
    return f"{what}; {holder(model, traffic, formats)}"


# ---- results ----


def _command(args: argparse.Namespace, setting: Setting) -> str:
    """What starts one engine, and how many there are; or why this version cannot."""
    from headrace.plan.units import MIB
    from headrace.sim.planner.command import serve_command
    from headrace.sim.planner.formats import AS_STORED

    candidate = setting.candidate
    settings, scheduler = candidate.deployment.settings, candidate.deployment.scheduler
    options: dict[str, object] = dict(engine_options(args))
    if candidate.format != AS_STORED:
        options["quantization"] = candidate.format
    # What the engine chose there; `serve` takes another step time budget by itself.
    options["step_time_budget"] = settings["step_time_budget"]
    options["max_model_len"] = settings["max_model_len"]
    options["max_num_seqs"] = scheduler.max_num_seqs
    options["max_num_batched_tokens"] = scheduler.max_num_batched_tokens
    if options.get("num_kv_blocks") is None:
        options["kv_cache_memory"] = f"{-(-settings['kv_cache_memory'] // MIB)}MiB"
    command, note = serve_command(
        args.model, candidate.machine, candidate.tp, engine_words(options), candidate.copies, setting.machines
    )
    return "; ".join(part for part in (command, note) if part)


def _row(setting: Setting, start: str) -> Row:
    from headrace.bench.report import Row

    candidate = setting.candidate
    labels: dict[str, str | int | float] = {
        "hardware": candidate.machine.label, "format": candidate.format_label, "tensor_parallel": candidate.tp,
        "machines": setting.machines, "replicas": setting.replicas, "start": start,
    }  # fmt: skip
    return Row(labels, setting.values())


def _config(
    args: argparse.Namespace,
    config: EngineConfig,
    search: CheapestSearch,
    prices: Any,
    left_out: dict[str, str],
) -> dict[str, Any]:
    promise = search.promise
    values = {
        "model": args.model, "hardware": args.hardware, "prices": dict(prices), "ttft_s": promise.ttft,
        "tpot_s": promise.tpot, "share": promise.share, "router": args.router, "left_out": left_out,
        "seed": search.load.seed, "engine": {**engine_options(args)},
    }  # fmt: skip
    if args.trace:
        return values | {"trace": args.trace, "trace_speed": args.trace_speed}
    workload = search.load.workload
    lengths = {"input_lengths": workload.inputs, "output_lengths": workload.outputs}
    return (
        values
        | {"rates": args.rate, "dataset_name": args.dataset_name}
        | {name: described(one) for name, one in lengths.items()}
    )


def _text(
    args: argparse.Namespace, search: CheapestSearch, commands: list[str], left_out: dict[str, str]
) -> str:
    load = search.load
    what = f"requests of {args.trace}" if args.trace else describe_lengths(load.workload)
    rate = load.arrivals.rate_per_s
    pace = "" if args.trace else " all at once" if rate == float("inf") else f" at {rate:g} a second"
    lines = [
        f"{args.model}{pace}: {what}",
        f"promised: {search.promise.describe()}",
        "",
        "Cheapest settings",
    ]
    for number, (setting, start) in enumerate(zip(search.best, commands, strict=True), 1):
        lines += _setting(number, setting, start, search.promise.share)
    if left_out:
        lines += ["", "Left out", *(f"  {name}: {why}" for name, why in left_out.items())]
    return "\n".join([*lines, ""])


def _setting(number: int, setting: Setting, start: str, share: float) -> list[str]:
    """share: of requests, that kept the times which are shown beside the median."""
    from headrace.bench.metrics import show_seconds
    from headrace.plan.report import table

    candidate, tally = setting.candidate, setting.tally
    machines = counted(setting.machines, "machine")
    if setting.replicas != setting.machines:
        machines += f", {counted(setting.replicas, 'replica')}"
    times = [
        f"{name} p50 {show_seconds(pool.percentile(0.5))}, p{share * 100:g} {show_seconds(pool.percentile(share))}"
        for name, pool in (("TTFT", tally.ttft), ("TPOT", tally.tpot))
        if pool.count
    ]
    rows = [
        (
            "cost",
            f"{_plain(setting.cost_per_hour)} an hour; {_plain(setting.cost_per_million_output)} a million output "
            f"tokens and {_plain(setting.cost_per_million_input)} a million input tokens, idle time included",
        ),
        (
            "load",
            f"{_plain(setting.requests_per_day)} requests a day, of which {setting.within:.2%} keep the promise",
        ),
        ("times", "; ".join(times)),
        ("engine", _engine(candidate.deployment)),
    ]
    if setting.fewer is not None:
        rows.append(("with one less", setting.fewer))
    rows.append(("start", start))
    body = table(rows).splitlines()
    return [f"  {number}. {candidate.describe()}: {machines}", *(f"   {line}" for line in body)]


def _plain(value: float) -> str:
    """Three digits or more, without an exponent where it is large."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _engine(deployment: Deployment) -> str:
    """How one engine is set up."""
    from headrace.plan.units import format_bytes

    scheduler, settings = deployment.scheduler, deployment.settings
    return (
        f"up to {counted(scheduler.max_num_seqs, 'sequence')} and {scheduler.max_num_batched_tokens:,} tokens a step, "
        f"{format_bytes(settings['kv_cache_memory'])} of KV in {settings['kv_cache_dtype']}; step times from "
        f"{deployment.assumed}"
    )
