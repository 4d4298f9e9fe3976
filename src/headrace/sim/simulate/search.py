"""The highest rate, or the fewest replicas, that keep a promise about latencies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.sim.simulate.deploy import MOST_REPLICAS
from headrace.sim.simulate.load import Load, Service
from headrace.sim.simulate.run import Simulation
from headrace.sim.simulate.tally import Distribution, Tally
from headrace.sim.workload.slo import SLO

Attempt = Callable[[float], Tally]
"""Simulates a rate, or a number of replicas."""

LONGEST_WAIT_S = 10.0
"""For the first token, where the promise has no limit for it: a queue that grows breaks one about TPOT alone, too."""
_LEAST_RATE, _MOST_RATE = 1e-3, 1e6
_PRECISION = 1.02
"""The rate that is found is within this factor of the highest one."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Limits in seconds, each kept by `share` (0 to 1) of the requests; None: no limit, but LONGEST_WAIT_S for the
    first token. Nothing is refused or fails."""

    ttft: float | None = None
    tpot: float | None = None
    share: float = 0.99

    @property
    def slo(self) -> SLO:
        """The limits of one request."""
        return SLO(LONGEST_WAIT_S if self.ttft is None else self.ttft, self.tpot)

    def describe(self) -> str:
        """In words."""
        limits = [
            f"a {name} of {limit:g} s"
            for name, limit in (("TTFT", self.ttft), ("TPOT", self.tpot))
            if limit is not None
        ]
        each = "each " if len(limits) > 1 else ""
        return f"{' and '.join(limits)} {each}for {self.share * 100:g} % of the requests"

    def is_lost(self, tally: Tally, requests: float) -> bool:
        """Whether so many of about `requests` were outside of `slo`, by which the tally counts, that one of the two
        limits is broken whatever comes."""
        return tally.answered - tally.within > 2 * (1 - self.share) * requests + 1 or tally.refused > 0

    def broken(self, tally: Tally) -> str | None:
        """What is not kept, in words."""
        if tally.refused or tally.failed:
            return f"{tally.refused + tally.failed} of {tally.sent} requests were refused or failed"
        for name, limit in (("ttft", self.ttft), ("tpot", self.tpot)):
            pool: Distribution = getattr(tally, name)
            found = pool.percentile(self.share)
            if limit is not None and found > limit:
                return f"{name.upper()} p{self.share * 100:g} is {found:.4g} s, {limit:g} s were promised"
            if name == "ttft" and limit is None and found > LONGEST_WAIT_S:
                return (
                    f"requests come faster than they are served: TTFT p{self.share * 100:g} is {found:.4g} s"
                )
        return None


def trial(service: Service, load: Load, promise: Promise, requests: float | None = None) -> Simulation:
    """A simulation that has not run yet, and that stops as soon as the promise is lost. requests: about how many there
    are, where the load does not say."""
    simulation = service.simulation(load, promise.slo)
    most = load.expected if requests is None else requests
    simulation.is_enough = lambda tally: promise.is_lost(tally, most)
    return simulation


@dataclass(frozen=True, slots=True)
class Found:
    """`value`: the rate or number of replicas; `beyond`: the nearest one that was tried and does not keep the promise,
    and why."""

    value: float
    tally: Tally
    beyond: float | None
    why: str | None


def highest_rate(attempt: Attempt, promise: Promise, start: float = 1.0) -> Found:
    """Double or halve the rate until the promise is kept on one side, then bisect.

    Raises ConfigError where not even a request alone keeps it.
    """
    rate, why, beyond = start, None, None
    tally = attempt(rate)
    best: tuple[float, Tally] | None = None
    while (broken := promise.broken(tally)) is None:
        best = rate, tally
        if rate >= _MOST_RATE:
            return Found(rate, tally, None, None)
        rate *= 2
        tally = attempt(rate)
    beyond, why = rate, broken
    while best is None:
        rate /= 4
        if rate < _LEAST_RATE:
            raise ConfigError(f"no rate keeps this promise: even of requests that are alone, {why}")
        tally = attempt(rate)
        broken = promise.broken(tally)
        if broken is None:
            best = rate, tally
        else:
            beyond, why = rate, broken
    while beyond / best[0] > _PRECISION:
        rate = (beyond * best[0]) ** 0.5
        tally = attempt(rate)
        broken = promise.broken(tally)
        if broken is None:
            best = rate, tally
        else:
            beyond, why = rate, broken
    return Found(*best, beyond, why)


def fewest_replicas(attempt: Attempt, promise: Promise, most: int = MOST_REPLICAS) -> Found:
    """Double the number until the promise is kept, then bisect.

    Raises ConfigError where `most` do not keep it.
    """
    count, below, why = 1, 0, None
    tally = attempt(count)
    while (broken := promise.broken(tally)) is not None:
        if count >= most:
            raise ConfigError(f"{count} replicas do not keep this promise: {broken}")
        below, why = count, broken
        count = min(2 * count, most)
        tally = attempt(count)
    best = count, tally
    while best[0] - below > 1:
        count = (best[0] + below) // 2
        tally = attempt(count)
        broken = promise.broken(tally)
        if broken is None:
            best = count, tally
        else:
            below, why = count, broken
    return Found(*best, below or None, why)
