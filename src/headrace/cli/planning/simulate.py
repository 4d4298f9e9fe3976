"""`headrace simulate`: a load in simulated time, served by the scheduler that serves real ones."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.engine_flags import add_engine_flags, add_model_argument, engine_config
from headrace.cli.parser import add_command, add_number, check_range, check_writable
from headrace.cli.planning.simulate_cheapest import add_cheapest_flags, check_cheapest, run_cheapest
from headrace.cli.planning.simulate_runs import (
    CHEAPEST,
    RATE,
    SEARCHES,
    counted,
    load_of,
    promise_of,
    run_simulation,
    service_of,
)
from headrace.cli.planning.workload_flags import (
    add_burst_flags,
    add_workload_flags,
    check_workload,
    describe_lengths,
    described,
)
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.report import Row
    from headrace.sim.simulate.load import Load, Service
    from headrace.sim.simulate.tally import Tally
    from headrace.sim.workload.slo import SLO

EXAMPLES = """\
examples:
  headrace simulate shape:llama-3.1-8b --hardware h100 --rate 4 --duration 600
  headrace simulate shape:llama-3.1-8b --hardware h100 --rate 2:32:5 --goodput ttft:0.2 tpot:0.05
  headrace simulate shape:llama-3.1-70b --hardware 4xh100 --search rate --ttft 0.5 --tpot 0.05
  headrace simulate shape:llama-3.1-8b --hardware l4 --rate 20 --search replicas --ttft 1 --percentile 95
  headrace simulate shape:llama-3.1-8b --hardware h100,4xl4 --price-per-hour h100=2.5,l4=0.8 --rate 20 \\
      --search cheapest --ttft 0.5 --tpot 0.05
  headrace simulate shape:llama-3.1-8b --hardware h100 --trace AzureLLMInferenceTrace_conv.csv --replicas 4
  headrace simulate tale --rate 8 --dataset-name multi_turn --timeline run.jsonl
  headrace simulate shape:llama-3.1-8b --hardware h100 --rate 2 --speculative shape:llama-3.2-1b \\
      --num-speculative-tokens 4 --acceptance-rate 0.8
"""
INTERRUPTED = 130
ROUTERS = ("round-robin", "least-loaded", "prefix-aware")
"""As in `headrace.sim.simulate.router`, which takes longer to import than help should; a test compares them."""
MOST_SEARCHED = 1_000_000
"""Requests of a load that a search simulates many times."""
COLUMNS = ("sent", "answered", "refused", "failed", "requests_per_s", "goodput_per_s", "output_tokens_per_s")
LATENCIES = (
    "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "tpot_p90_s", "tpot_p99_s", "itl_p50_s", "itl_p90_s",
    "itl_p99_s", "e2e_p50_s", "e2e_p90_s", "e2e_p99_s",
)  # fmt: skip


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "simulate", "[options] [MODEL]", examples=EXAMPLES,
        summary="serve a load in simulated time, on any hardware",
        description="Run the scheduler, the prefix cache and the KV blocks of this engine on a simulated clock. Steps "
        "take what the cost model says for the hardware, and tokens cost nothing, so that hours pass in seconds. "
        "Requests are those of `headrace bench serve`, or of a trace file; the figures are those that it prints. "
        "Only the model's config is read.",
    )  # fmt: skip
    add_model_argument(parser)
    parser.add_argument(
        "--hardware", default="this", metavar="NAME",
        help="this, h100, a100-80g, l4, epyc-9654, ..., or several devices that share every layer, as in 4xh100; for "
        "--search cheapest several machines, with commas between (default: %(default)s)",
    )  # fmt: skip
    work = parser.add_argument_group("requests")
    add_workload_flags(work, num_prompts=None)
    add_number(work, "--users", 1, "to whom conversations belong in turn, for --scheduling-policy fair")
    add_number(work, "--pause", 0.0, "between an answer and the next turn", "S", float)
    work.add_argument(
        "--trace", metavar="FILE",
        help="requests of a file instead: CSV as Azure's (TIMESTAMP, ContextTokens, GeneratedTokens), or JSON lines as "
        "Mooncake's (timestamp, input_length, output_length, hash_ids)",
    )  # fmt: skip
    add_number(work, "--trace-speed", 1.0, "times faster than recorded", "X", float)
    when = parser.add_argument_group("arrivals")
    when.add_argument(
        "--rate", "--request-rate", nargs="+", default=["1"], metavar="R",
        help="requests a second: one or several rates, from:to:steps, or inf for all at once (default: 1)",
    )  # fmt: skip
    add_number(
        when,
        "--duration",
        None,
        "send for so long (default: 1000 requests, in a search 60 s, for the cheapest setting 1000 or more)",
        "S",
        float,
    )
    add_burst_flags(when)
    many = parser.add_argument_group("replicas")
    add_number(many, "--replicas", 1, "engines behind a router")
    many.add_argument(
        "--router", choices=ROUTERS, default=ROUTERS[0], help="who gets a request (default: %(default)s)"
    )
    add_number(many, "--max-queue", 50_000, "requests that a replica holds, further ones are refused")
    add_number(many, "--time-to-failure", None, "of a replica, mean (default: none fails)", "S", float)
    add_number(many, "--time-to-recovery", 60.0, "of a replica, mean", "S", float)
    add_number(many, "--retries", 3, "of a request whose replica failed")
    drafts = parser.add_argument_group("speculation (with --speculative)")
    add_number(
        drafts, "--acceptance-rate", 0.6, "of a drafted token, if those before it were right", "P", float
    )
    search = parser.add_argument_group("search")
    search.add_argument(
        "--search",
        choices=SEARCHES,
        help="find the highest rate of these replicas, the fewest replicas for this rate, or the cheapest setting for "
        "this rate: machines, formats of weights, tensor parallel degrees and replicas",
    )
    add_number(search, "--ttft", None, "promised time to the first token", "S", float)
    add_number(search, "--tpot", None, "promised time per output token", "S", float)
    add_number(search, "--percentile", 99.0, "of the requests keep the promise", "P", float)
    add_cheapest_flags(search)
    parser.add_argument(
        "--goodput", nargs="+", default=[], metavar="NAME:S",
        help="count requests that meet the SLO, in seconds: ttft, tpot, e2el, such as ttft:0.2 tpot:0.05",
    )  # fmt: skip
    parser.add_argument(
        "--timeline", metavar="FILE", help="write what happened, for the web page to replay: `headrace serve`"
    )
    add_number(parser, "--timeline-interval", 0.2, "of simulated time between two pictures", "S", float)
    parser.add_argument("--json", metavar="PATH", help="write the result to this file, - for standard output")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.bench.report import make_report
    from headrace.plan.hardware_table import find_hardware
    from headrace.sim.simulate.deploy import deploy
    from headrace.sim.workload.arrivals import parse_rates

    rates = parse_rates(args.rate)
    _check(args, rates)
    if args.search == CHEAPEST:
        return run_cheapest(args, rates[0])
    config = engine_config(args)
    service = service_of(args, deploy(config, find_hardware(args.hardware)), config.seed)
    load = load_of(args)
    vocab_size = service.deployment.scheduler.vocab_size
    if args.trace:
        load.asks(vocab_size)  # one that cannot be read is an error before the work
    else:
        within = load.workload.within(service.deployment.max_model_len)
        load = replace(load.at_rate(rates[0]), workload=within)
    rows: list[Row] = []
    notes: list[str] = []
    complete = True
    try:
        rows += _search(args, service, load, notes) if args.search else _rates(
            args, service, load, rates, notes
        )  # fmt: skip
    except KeyboardInterrupt:
        complete = False
    what = f"requests of {args.trace}" if args.trace else describe_lengths(load.workload)
    drafts = service.deployment.describe_drafts()
    head = [service.deployment.describe(), f"{counted(args.replicas, 'replica')}, {args.router}: {what}"]
    head += [] if drafts is None else [drafts]
    report = make_report(
        "simulate", rows, config=_config(args, service, load), complete=complete, notes=notes
    )
    if args.json != "-":
        print(*head, sep="\n")
        print(f"\n{replace(report, notes=(), complete=True).table(_shown(rows), title=False)}")
        print(f"\n{report.table(LATENCIES, title=False)}")
    if args.json:
        report.write(args.json)
    return 0 if complete else INTERRUPTED


def _config(args: argparse.Namespace, service: Service, load: Load) -> dict[str, Any]:
    deployment = service.deployment
    config = {
        "model": args.model, "hardware": deployment.hardware, "step_times": deployment.profile.source,
        **deployment.settings, "rates": args.rate, "replicas": args.replicas, "router": args.router,
        "max_num_seqs": deployment.scheduler.max_num_seqs, "seed": load.seed,
        "max_num_batched_tokens": deployment.scheduler.max_num_batched_tokens, "goodput": args.goodput,
    }  # fmt: skip
    if args.trace:
        return config | {"trace": args.trace, "trace_speed": args.trace_speed}
    lengths = {"input_lengths": load.workload.inputs, "output_lengths": load.workload.outputs}
    return (
        config | {"dataset_name": args.dataset_name} | {name: described(one) for name, one in lengths.items()}
    )


# ---- runs ----


def _rates(
    args: argparse.Namespace, service: Service, load: Load, rates: Sequence[float], notes: list[str]
) -> Iterator[Row]:
    """A row for each rate; one for a trace, which has its own."""
    from headrace.bench.report import Row
    from headrace.sim.simulate.timeline import Timeline

    slo = _slo(args)
    for rate in [math.nan] if args.trace else rates:
        at_rate = load if args.trace else load.at_rate(rate)
        label: float | str = "trace" if args.trace else "inf" if math.isinf(rate) else round(rate, 6)
        with contextlib.ExitStack() as stack:
            observer = None
            if args.timeline:
                observer = stack.enter_context(
                    Timeline(Path(args.timeline), args.timeline_interval, args.model)
                )
            simulation = service.simulation(at_rate, slo, observer)
            run_simulation(simulation, f"rate {label}", at_rate.count, notes)
        if args.timeline:
            notes.append(f"{args.timeline} can be opened on the page of `headrace serve`")
        yield Row({"rate": label}, simulation.tally.values())


def _search(args: argparse.Namespace, service: Service, load: Load, notes: list[str]) -> Iterator[Row]:
    """One row: the setting that was found."""
    from headrace.bench.report import Row
    from headrace.sim.simulate.search import fewest_replicas, highest_rate, trial

    promise, of_rate = promise_of(args), args.search == RATE
    if not of_rate and MOST_SEARCHED < load.expected < math.inf:
        raise ConfigError(
            f"--search replicas simulates all requests many times, and this load has {load.expected:,.0f}: "
            f"it takes up to {MOST_SEARCHED:,}, so lower --rate, or give --num-prompts or a shorter --duration"
        )

    def attempt(value: float) -> Tally:
        at_rate = load.at_rate(value) if of_rate else load
        replicas = service.replicas if of_rate else int(value)
        simulation = trial(replace(service, replicas=replicas), at_rate, promise)
        run_simulation(simulation, f"{args.search} {value:g}", at_rate.count, [])
        return simulation.tally

    if of_rate:
        found = highest_rate(attempt, promise)
    else:
        found = fewest_replicas(attempt, promise, service.deployment.most_replicas)
    if found.beyond is not None:
        notes.append(f"{args.search} {found.beyond:.4g} breaks the promise: {found.why}")
    yield Row({args.search: round(found.value, 4)}, found.tally.values())


# ---- flags ----


def _slo(args: argparse.Namespace) -> SLO | None:
    from headrace.sim.workload.slo import SLO

    return SLO.parse(args.goodput)


def _shown(rows: Sequence[Row]) -> list[str]:
    """The columns of the first table: goodput only where there are targets."""
    return [name for name in COLUMNS if name != "goodput_per_s" or any(name in row.values for row in rows)]


def _check(args: argparse.Namespace, rates: Sequence[float]) -> None:
    """Raises ConfigError for a number that is out of range, and for options that do not go together."""
    check_workload(args)
    _slo(args)
    for flag, low, high in (
        ("users", 1, 1_000_000), ("pause", 0, 86_400), ("trace-speed", 1e-3, 1e6), ("duration", 1e-3, 1e9),
        ("replicas", 1, 1024), ("max-queue", 1, 1_000_000), ("time-to-failure", 1e-3, 1e9),
        ("time-to-recovery", 1e-3, 1e9), ("retries", 0, 1000), ("acceptance-rate", 0, 1), ("ttft", 1e-6, 86_400),
        ("tpot", 1e-6, 86_400), ("percentile", 1, 100), ("timeline-interval", 1e-3, 86_400),
    ):  # fmt: skip
        check_range(flag, getattr(args, flag.replace("-", "_")), low, high)
    if args.trace and args.search == RATE:
        raise ConfigError(
            "--search rate needs a rate to vary, but --trace has its own: leave one of them out"
        )
    if args.search and args.ttft is None and args.tpot is None:
        raise ConfigError("--search needs a promise to keep: give --ttft or --tpot in seconds")
    if not args.search and not (args.ttft is None and args.tpot is None):
        raise ConfigError("--ttft and --tpot are promises for --search; --goodput counts who meets a target")
    if args.search and (len(rates) > 1 or args.timeline or args.goodput):
        raise ConfigError("--search takes one --rate, no --goodput and no --timeline")
    if args.timeline and len(rates) > 1:
        raise ConfigError("--timeline shows one run: give one --rate")
    check_cheapest(args)
    open_ended = args.search not in (None, RATE) and args.num_prompts is None
    endless = args.duration is not None or open_ended
    if any(map(math.isinf, rates)) and endless and not args.trace:
        raise ConfigError("--rate inf takes --num-prompts, not --duration: all requests come at once")
    for what, path in (("the result", args.json), ("the timeline", args.timeline)):
        if path and path != "-":
            check_writable(what, path)
