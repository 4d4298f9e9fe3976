"""A load to simulate, and one run of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from headrace.errors import ConfigError
from headrace.sim.simulate.deploy import Deployment
from headrace.sim.simulate.executor import Drafts
from headrace.sim.simulate.failures import Failures
from headrace.sim.simulate.generated import GeneratedAsks
from headrace.sim.simulate.requests import Asks
from headrace.sim.simulate.router import ROUTERS
from headrace.sim.simulate.run import Observer, Progress, Simulation
from headrace.sim.simulate.tally import Tally
from headrace.sim.simulate.traces import TraceAsks
from headrace.sim.workload.arrivals import Arrivals
from headrace.sim.workload.sessions import Workload
from headrace.sim.workload.slo import SLO


@dataclass(frozen=True, slots=True)
class Load:
    """What comes in: the workload at these arrivals, or a trace file. At most `count` conversations, begun within
    `duration_s`; others have no limit, so one of the two must be given for a workload.

    pause_s: between an answer and the next turn. users: the conversations' owners in turn. trace_speed: how many times
    faster than recorded.
    """

    workload: Workload
    arrivals: Arrivals
    count: int | None = None
    duration_s: float = math.inf
    pause_s: float = 0.0
    users: int = 1
    trace: Path | None = None
    trace_speed: float = 1.0
    seed: int = 0

    def asks(self, vocab_size: int) -> Asks:
        """The requests as token ids."""
        if self.trace is not None:
            return TraceAsks(self.trace, vocab_size, self.trace_speed, self.count, self.duration_s)
        return GeneratedAsks(
            self.workload,
            self.arrivals,
            vocab_size,
            self.count,
            self.duration_s,
            self.seed,
            self.pause_s,
            self.users,
        )

    @property
    def expected(self) -> float:
        """About how many requests there are, turns of conversations included; infinite for a trace without a count."""
        begun = math.inf if self.trace is not None else self.arrivals.rate_per_s * self.duration_s
        turns = 1 if self.trace is not None else self.workload.turns
        return min(begun, math.inf if self.count is None else self.count) * turns

    def at_rate(self, rate: float) -> Load:
        """The same workload at another rate."""
        return replace(self, arrivals=replace(self.arrivals, rate_per_s=rate))


@dataclass(frozen=True, slots=True)
class Service:
    """What serves it: replicas of a deployment behind a router. The fields are those of `run.Simulation`."""

    deployment: Deployment
    replicas: int = 1
    router: str = "round-robin"
    drafts: Drafts | None = None
    failures: Failures | None = None
    retries: int = 3
    most_waiting: int | None = None
    skipping: bool = True

    def simulation(
        self,
        load: Load,
        slo: SLO | None = None,
        observer: Observer | None = None,
        progress: Progress | None = None,
    ) -> Simulation:
        """A simulation that has not run yet. Raises ConfigError for more replicas than memory holds."""
        deployment, server = self.deployment, self.deployment.profile.server
        if self.replicas > deployment.most_replicas:
            raise ConfigError(
                f"{self.replicas:,} replicas with their KV blocks are too many for one simulation: take up to "
                f"{deployment.most_replicas:,}, or fewer blocks with --num-kv-blocks"
            )
        return Simulation(
            load.asks(deployment.scheduler.vocab_size),
            partial(deployment.make_engine, self.drafts), deployment.times,
            Tally(slo, server.first_token_s), ROUTERS[self.router](), self.replicas, self.failures,
            self.most_waiting, self.retries, self.skipping, observer, progress,
        )  # fmt: skip
