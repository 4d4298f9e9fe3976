"""Short simulations of settings: the scheduler that serves real requests, on the clock of the cost model.

Work is bounded by counts of steps and tokens, never by the clock, so that the same machine profile gives the same
settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import EngineConfig
from headrace.plan.hardware import Machine
from headrace.sim.planner.model import PlannedModel
from headrace.sim.profile import Profile
from headrace.sim.simulate.deploy import Deployment, deploy_spec
from headrace.sim.simulate.executor import Drafts
from headrace.sim.simulate.load import Load, Service
from headrace.sim.simulate.run import Simulation
from headrace.sim.simulate.search import Promise
from headrace.sim.simulate.tally import Tally
from headrace.sim.tuning.gains import ACCEPTANCE, DRAFTS, drafters_of
from headrace.sim.workload.arrivals import Arrivals
from headrace.sim.workload.sessions import Workload
from headrace.speculative.drafters import Drafters

MOST_WORK = 120_000
"""Of all simulations of one choice: tokens, and STEP for each step. About 1.5 s of one core."""
STEP = 4
"""A step costs the simulator as much as so many tokens."""
SHARE = 0.9
"""Of the requests keep a promise."""
ALONE = 1e-4
"""Requests a second: none is there when the next one comes."""
FEWEST, MOST = 24, 96
"""Requests of a load at a rate; as many as two batches between."""
LOW_REQUESTS = 16
"""Of a load at a low rate: nobody waits, so that few tell as much as many."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a goal settles; the fields are those of EngineConfig."""

    max_num_seqs: int
    kv_cache_dtype: str
    max_num_batched_tokens: int | None
    step_time_budget: float | str
    speculative: str | None

    def put_into(self, config: EngineConfig) -> EngineConfig:
        return replace(
            config,
            max_num_seqs=self.max_num_seqs,
            kv_cache_dtype=self.kv_cache_dtype,
            max_num_batched_tokens=self.max_num_batched_tokens,
            step_time_budget=self.step_time_budget,
            speculative=self.speculative,
        )

    def vary(self, **changes: Any) -> Settings:
        """The same with other values."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation of some settings found.

    rate: requests a second that came; None: a full queue. ttft_s, tpot_s: of SHARE of the requests; answer_s: mean time
    of a whole answer. broken: what of a promise was not kept.
    """

    settings: Settings
    rate: float | None
    ttft_s: float
    tpot_s: float
    answer_s: float
    tokens_per_s: float
    broken: str | None = None


class SpentError(Exception):
    """No work is left for another simulation."""


class Trials:
    """Simulates settings with usual conversations, the same ones each time, until MOST_WORK is spent. requests: that
    were answered in all of them."""

    def __init__(self, config: EngineConfig, model: PlannedModel, machine: Machine, profile: Profile) -> None:
        self.requests = self.work = 0
        self._config, self._model, self._machine, self._profile = config, model, machine, profile
        self._deployments: dict[Settings, Deployment] = {}
        self._drafters: dict[str | None, Drafters] = {}  # by the option `speculative`

    def check(self, settings: Settings) -> None:
        """Raise ConfigError where the engine cannot be had with these settings, as it does not fit."""
        self._deployment(settings)

    def full(self, settings: Settings) -> Outcome:
        """A queue that never runs empty: output tokens a second, from when half a batch was answered until the last
        request joins. Raises SpentError."""
        batch = settings.max_num_seqs
        simulation = self._simulation(settings, Arrivals(), 3 * batch + FEWEST)
        marks: list[tuple[float, int]] = []

        def is_enough(tally: Tally) -> bool:
            scheduler = simulation.replicas[0].engine.scheduler
            if tally.answered >= (batch + 1) // 2:
                marks.append((simulation.now, scheduler.stats.output_tokens))
            return not len(scheduler.waiting)

        found = self._run(settings, simulation, None, is_enough)
        (begin_s, before), (end_s, after) = marks[0], marks[-1]
        return replace(found, tokens_per_s=(after - before) / max(1e-9, end_s - begin_s))

    def at_low_rate(self, settings: Settings, rate: float) -> Outcome:
        """Few requests, at a rate that leaves the machine idle most of the time. Raises SpentError."""
        return self._run(settings, self._simulation(settings, Arrivals(rate), LOW_REQUESTS), rate, None)

    def at_rate(self, settings: Settings, rate: float, promise: Promise) -> Outcome:
        """A load that comes at random at this rate: it ends as soon as the promise is broken whatever comes, so that
        the times of a broken one are of its first requests. ALONE, all requests are answered. Raises SpentError."""
        if rate == ALONE:  # no step has prompts beside streams, so that a time budget says nothing
            run = settings.vary(step_time_budget="off")
            simulation = self._simulation(run, Arrivals(rate), LOW_REQUESTS, promise)
            found = self._run(settings, simulation, rate, None)
        else:
            count = min(MOST, max(FEWEST, 2 * settings.max_num_seqs))
            simulation = self._simulation(settings, Arrivals(rate), count, promise)
            found = self._run(settings, simulation, rate, lambda tally: promise.is_lost(tally, count))
        return replace(found, broken=promise.broken(simulation.tally))

    # ---- one run ----

    def _deployment(self, settings: Settings) -> Deployment:
        known = self._deployments.get(settings)
        if known is None:
            config = settings.put_into(self._config)
            if config.speculative not in self._drafters:
                self._drafters[config.speculative] = drafters_of(self._model, config, config.speculative)
            drafters = self._drafters[config.speculative]
            known = deploy_spec(config, self._model.spec, self._machine, self._profile, drafters)
            self._deployments[settings] = known
        return known

    def _simulation(
        self, settings: Settings, arrivals: Arrivals, count: int, promise: Promise | None = None
    ) -> Simulation:
        deployment = self._deployment(settings)
        most = deployment.most_drafts
        drafts = Drafts(min(most, DRAFTS), ACCEPTANCE) if most else None
        load = Load(Workload().within(deployment.max_model_len), arrivals, count)
        service = Service(deployment, drafts=drafts)
        return service.simulation(load, None if promise is None else promise.slo)

    def _run(
        self,
        settings: Settings,
        simulation: Simulation,
        rate: float | None,
        is_enough: Callable[[Tally], bool] | None,
    ) -> Outcome:
        if self.work >= MOST_WORK:
            raise SpentError
        left, spent = MOST_WORK - self.work, False

        def ends(tally: Tally) -> bool:
            nonlocal spent
            spent = _work(simulation) > left
            return spent or (is_enough is not None and is_enough(tally))

        simulation.is_enough = ends
        tally = simulation.run()
        self.work += _work(simulation)
        self.requests += tally.answered
        if spent or not tally.answered:
            raise SpentError
        values = tally.values()
        return Outcome(
            settings,
            rate,
            tally.ttft.percentile(SHARE),
            tally.tpot.percentile(SHARE),
            tally.e2e.total / tally.answered,
            values["output_tokens_per_s"],
        )


def _work(simulation: Simulation) -> int:
    """Steps that were applied many at once cost about a third as much as others."""
    replica = simulation.replicas[0]
    tokens = replica.engine.scheduler.stats.output_tokens
    return STEP * replica.steps + (tokens // 3 if replica.skipped else tokens)
