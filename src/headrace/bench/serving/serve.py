"""`headrace bench serve`: one row for each request rate against a running server."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.bench.report import Label, Row
from headrace.bench.serving.figures import reasons, row_of
from headrace.bench.serving.load import Load, Loaded, Outcome
from headrace.bench.serving.target import Target
from headrace.sim.workload.arrivals import Arrivals
from headrace.sim.workload.sessions import Session, WordRate, Workload
from headrace.sim.workload.slo import SLO

Progress = Callable[[str], None]
T = TypeVar("T")

LATE_S = 0.05
"""Above this lateness at p99 requests were not sent as planned: the client is short of CPU."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`arrivals`: one run each, of `sessions` sessions. With `seconds` the load is a closed loop: `max_concurrency`
    clients run one session after the other for that long. `warmups` sessions are not counted."""

    workload: Workload
    words: WordRate
    arrivals: Sequence[Arrivals]
    sessions: int
    warmups: int = 0
    max_concurrency: int | None = None
    seconds: float | None = None
    timeout_s: float = 600.0
    slo: SLO | None = None
    seed: int = 0


def serve_rows(target: Target, plan: Plan, progress: Progress, notes: list[str]) -> Iterator[Row]:
    """Measure, a row at a time; warnings and the reasons of failures are appended to `notes`."""
    if plan.warmups:
        progress("warm-up")
        warm = plan.workload.sessions(plan.seed - 1, plan.words)
        _run(_load(target, plan, warm, Arrivals(), plan.warmups, lambda outcome: None))
    for number, arrivals in enumerate(plan.arrivals):
        # Other words for every rate: the prefix cache must not help the later ones.
        sessions = plan.workload.sessions(plan.seed + number, plan.words)
        name = _name(plan, arrivals)
        done = itertools.count(1)

        def on_done(outcome: Outcome, name: str = name, done: Iterator[int] = done) -> None:
            progress(f"{name}: {next(done)} done")

        loaded = _run(_load(target, plan, sessions, arrivals, plan.sessions, on_done))
        row = row_of(_labels(plan, arrivals), loaded, plan.slo)
        notes += [f"{name}: {reason}" for reason in reasons(loaded)]
        if plan.seconds is None and plan.max_concurrency is None and row.values["late_p99_s"] > LATE_S:
            notes.append(
                f"{name}: requests were sent late: this client is short of CPU, and figures look worse"
            )
        yield row


async def _load(
    target: Target,
    plan: Plan,
    sessions: Iterator[Session],
    arrivals: Arrivals,
    count: int,
    on_done: Callable[[Outcome], None],
) -> Loaded:
    clients = plan.max_concurrency or 1
    if plan.seconds is not None:
        load = Load(target, max_concurrency=None, timeout_s=plan.timeout_s, on_done=on_done)
        return await load.closed(sessions, clients, plan.seconds)
    load = Load(target, max_concurrency=plan.max_concurrency, timeout_s=plan.timeout_s, on_done=on_done)
    return await load.timetable(sessions, arrivals.times(count, plan.seed))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed: a token costs the client about 15 % less there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


_run = run


def _labels(plan: Plan, arrivals: Arrivals) -> dict[str, Label]:
    if plan.seconds is not None:
        return {"clients": plan.max_concurrency or 1}
    return {"rate": "inf" if math.isinf(arrivals.rate_per_s) else round(arrivals.rate_per_s, 6)}


def _name(plan: Plan, arrivals: Arrivals) -> str:
    name, value = next(iter(_labels(plan, arrivals).items()))
    return f"{name} {value}"
