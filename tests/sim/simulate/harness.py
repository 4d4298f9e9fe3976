"""Small simulations: step times that are exact in binary, and what became of each request."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.core.engine import Engine
from headrace.core.policy import SchedulerConfig
from headrace.core.types import KVGroupSpec, Output, RequestStats, StepPlan, StepResult
from headrace.sim.simulate.executor import Drafts, SimulatedExecutor, SyntheticTokens
from headrace.sim.simulate.generated import GeneratedAsks
from headrace.sim.simulate.replica import Replica
from headrace.sim.simulate.requests import Asks
from headrace.sim.simulate.router import ROUTERS
from headrace.sim.simulate.run import Observer, Simulation
from headrace.sim.simulate.tally import Tally
from headrace.sim.workload.arrivals import Arrivals
from headrace.sim.workload.sessions import Lengths, Workload

VOCAB = 500
TICK = 2.0**-20


class ExactTimes:
    """Whole multiples of a power of two: sums do not depend on their order."""

    def plan_s(self, plan: StepPlan) -> float:
        tokens = sum(len(work.tokens) for work in plan.slices)
        keys = sum(work.start + len(work.tokens) for work in plan.slices)
        return (1000 + 50 * tokens + keys) * TICK

    def steady_s(self, batch: int, keys: int, steps: int) -> Sequence[float]:
        return [(1000 + 50 * batch + keys + batch * step) * TICK for step in range(steps)]


@dataclass
class Watch(Observer):
    """Remembers how each request ended."""

    interval_s: float = math.inf
    ends: dict[str, tuple[int, RequestStats]] = field(default_factory=dict)
    ticks: list[float] = field(default_factory=list)

    def tick(self, now: float, replicas: list[Replica]) -> None:
        self.ticks.append(now)

    def ended(self, replica: int, output: Output) -> None:
        assert output.stats is not None and output.request_id not in self.ends
        self.ends[output.request_id] = replica, output.stats


def plan_hash(plans: Sequence[StepPlan], *, tokens: bool = True) -> str:
    """Of everything that an executor is told but the numbers of steps; steps without slices only add what they release.

    `tokens` False leaves the tokens themselves out, and counts them."""
    digest = hashlib.sha256()
    released: list[int] = []
    for plan in plans:
        released += plan.released
        if not plan.slices:
            continue
        slices = (
            plan.slices if tokens else [replace(work, tokens=(0,) * len(work.tokens)) for work in plan.slices]
        )
        for work in slices:
            new = work.new and (work.new.num_prompt, len(work.new.tokens), work.new.params.max_tokens)
            digest.update(repr((replace(work, new=None), new)).encode())
        digest.update(repr((released, plan.copies)).encode())
        released = []
    return digest.hexdigest()


class Recording(SimulatedExecutor):
    """Keeps every plan."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return super().execute(plan)


WORKLOAD = Workload(Lengths(30, 0.8, 1, 120), Lengths(25, 0.9, 1, 100))


def asks(
    count: int = 60, *, workload: Workload = WORKLOAD, rate: float = 200.0, **options: Any
) -> GeneratedAsks:
    return GeneratedAsks(workload, Arrivals(rate, options.pop("burstiness", 1.0), options.pop("burst", 1)), VOCAB,
                         count=count, **options)  # fmt: skip


def simulation(
    requests: Asks, *, blocks: int = 200, block_size: int = 16, prefix_caching: bool = True,
    drafts: Drafts | None = None, router: str = "round-robin", groups: Sequence[KVGroupSpec] = (),
    times: Any = None, tally: Tally | None = None, observer: Observer | None = None,
    options: dict[str, Any] | None = None, **config: Any,
) -> Simulation:  # fmt: skip
    """Of an engine with these options of SchedulerConfig; `options` are the simulation's own."""
    settings = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 512,
        "vocab_size": VOCAB,
    } | config
    if drafts is not None:
        settings["max_draft"] = drafts.most
    groups = groups or [KVGroupSpec("full", blocks, block_size)]

    def make_engine() -> tuple[Engine, SimulatedExecutor]:
        engine = Engine(SchedulerConfig(**settings), groups, prefix_caching=prefix_caching)
        return engine, Recording(SyntheticTokens(VOCAB, drafts))

    return Simulation(
        requests, make_engine, times or ExactTimes(), tally or Tally(), ROUTERS[router](),
        observer=Watch() if observer is None else observer, **(options or {}),
    )  # fmt: skip
