"""What `headrace simulate` runs: a load and a service from the flags, and simulations with a progress bar."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.planning.workload_flags import workload_of

if TYPE_CHECKING:
    from headrace.sim.simulate.deploy import Deployment
    from headrace.sim.simulate.load import Load, Service
    from headrace.sim.simulate.run import Simulation
    from headrace.sim.simulate.search import Promise

RATE, REPLICAS, CHEAPEST = "rate", "replicas", "cheapest"
SEARCHES = (RATE, REPLICAS, CHEAPEST)
DEFAULT_REQUESTS = 1000
SEARCH_S = 60.0
"""Of a load in a search, or a short one would end before its queue is seen to grow."""


def service_of(args: argparse.Namespace, deployment: Deployment, seed: int) -> Service:
    """Replicas of a deployment, as the flags say."""
    from headrace.sim.simulate.executor import Drafts
    from headrace.sim.simulate.failures import Failures
    from headrace.sim.simulate.load import Service

    drafts, failures = None, None
    if deployment.most_drafts:
        drafts = Drafts(deployment.most_drafts, args.acceptance_rate, seed)
    if args.time_to_failure is not None:
        failures = Failures(args.time_to_failure, args.time_to_recovery, seed)
    return Service(deployment, args.replicas, args.router, drafts, failures, args.retries, args.max_queue)


def load_of(args: argparse.Namespace) -> Load:
    """The requests, without their rate. A search for the cheapest setting chooses the length of its loads itself."""
    from headrace.sim.simulate.load import Load
    from headrace.sim.workload.arrivals import Arrivals

    count, duration = args.num_prompts, args.duration
    if count is None and duration is None and not args.trace and args.search != CHEAPEST:
        count, duration = (None, SEARCH_S) if args.search else (DEFAULT_REQUESTS, None)
    return Load(
        workload_of(args),
        Arrivals(math.inf, args.burstiness, args.burst_size),
        count,
        math.inf if duration is None else duration,
        args.pause,
        args.users,
        Path(args.trace) if args.trace else None,
        args.trace_speed,
        getattr(args, "seed", 0),
    )


def promise_of(args: argparse.Namespace) -> Promise:
    """What a search must keep."""
    from headrace.sim.simulate.search import Promise

    return Promise(args.ttft, args.tpot, args.percentile / 100)


def run_simulation(simulation: Simulation, name: str, requests: int | None, notes: list[str]) -> None:
    """Run with a progress bar, and note what the table does not show."""
    from tqdm import tqdm

    begin = time.perf_counter()
    with tqdm(total=requests, unit="request", desc=name, file=sys.stderr, leave=False, disable=None) as bar:
        simulation.progress = lambda: bar.update()
        if bar.disable:
            simulation.progress = None
        tally = simulation.run()
    spent = time.perf_counter() - begin
    parts = [
        f"{name}: {tally.last_s:,.0f} s simulated in {spent:.2f} s, {tally.last_s / spent:,.0f} x real time"
    ]
    if tally.prompt_tokens and tally.cached_tokens:
        parts.append(
            f"{tally.cached_tokens / tally.prompt_tokens:.0%} of prompt tokens from the prefix cache"
        )
    if tally.preemptions:
        parts.append(counted(tally.preemptions, "preemption"))
    if tally.outages:
        parts.append(
            f"{counted(tally.outages, 'outage')}, after which {counted(tally.retries, 'request')} ran again"
        )
    busy = simulation.busy_s / max(1e-9, tally.last_s)
    parts.append(f"replicas busy {busy / len(simulation.replicas):.0%} of the time")
    if simulation.drafting_s:
        parts.append(f"{simulation.drafting_s / simulation.busy_s:.0%} of which they drafted")
    notes.append("; ".join(parts))
    notes += [f"{count} failed: {reason}" for reason, count in tally.reasons.most_common(3)]


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
