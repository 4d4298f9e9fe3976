"""The cheapest settings that keep a promise under a load: formats, tensor parallel degrees and numbers of machines.

First every candidate serves requests that are alone: one that is too slow for them is out. The others are tried in the
order of what they are likely to cost. Once there are three settings, each further candidate has as many machines as the
third one pays for, and is out if these do not keep the promise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.errors import ConfigError
from headrace.plan.units import round_up
from headrace.sim.simulate.candidates import Candidate
from headrace.sim.simulate.deploy import Deployment
from headrace.sim.simulate.load import Load, Service
from headrace.sim.simulate.requests import Ask, Asks
from headrace.sim.simulate.run import Simulation
from headrace.sim.simulate.search import Promise, trial
from headrace.sim.simulate.setting import Setting
from headrace.sim.simulate.tally import Tally
from headrace.sim.simulate.times import MeteredTimes

BEST = 3
LEAST_REQUESTS, MOST_REQUESTS = 1000, 100_000
"""Of a load whose length is left open, and of any load."""
LEAST_S, LEAST_LIVES = 20.0, 4.0
"""A load that is left open lasts at least so long, and so many times as long as a request that is alone, so that as
many run at once as ever will."""
MOST_ALONE = 1000
_GAP_S = 1e4
"""Between requests that are alone."""

Run = Callable[[Simulation, str], Tally]
"""Runs a simulation, which is described in a few words."""


@dataclass(frozen=True, slots=True)
class _Trial:
    tally: Tally
    broken: str | None
    prompt_share: float = 0.0


class CheapestSearch:
    """Finds the best settings for a load at one rate; `best` has those of the search until now.

    service: what serves with a deployment, of which the number of replicas is tried. A load without a count and a
    duration is given a length for each candidate.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        load: Load,
        promise: Promise,
        service: Callable[[Deployment], Service],
        run: Run,
    ) -> None:
        """Raises ConfigError for a load that is too large, or that is longer than every candidate's context."""
        self.promise, self._service, self._run = promise, service, run
        self.left_out: list[tuple[Candidate, str]] = []
        """Candidates that cannot keep the promise at any number of machines, and why."""
        self.simulations = 0
        self.load, self.candidates = _fitted(load, candidates, self.left_out)
        self.done = len(self.left_out)
        """Candidates that are out, or whose number of machines is known."""
        self._requests, self._per_s = _demand(self.load, candidates)
        self._alone: dict[tuple[str, int, str], _Trial] = {}
        self._trials: dict[tuple[tuple[str, int, str], int], _Trial] = {}
        self._found: dict[tuple[str, str], Setting] = {}
        self._crowded: list[tuple[Candidate, int]] = []

    @property
    def best(self) -> tuple[Setting, ...]:
        """The cheapest settings of different machines and formats, best first. Of equal cost, wider weights are better,
        and then fewer devices an engine."""
        return tuple(sorted(self._found.values(), key=lambda one: one.rank)[:BEST])

    def search(self) -> None:
        """Try every candidate."""
        fast = []
        for candidate in self.candidates:
            if self._is_fast(candidate):
                fast.append(candidate)
            else:
                self.done += 1
        for candidate in sorted(fast, key=lambda one: self._estimate(one) * one.price):
            self._try(candidate)
            self.done += 1

    def problem(self) -> str:
        """Why nothing keeps the promise, and what comes nearest, in a sentence."""
        asked = self.promise.describe()
        if self._crowded:
            candidate, machines = min(self._crowded, key=self._distance)
            return (
                f"no setting keeps {asked}; the nearest is {candidate.describe()} with "
                f"{machines * candidate.copies:,} replicas: {self._lost(candidate, machines)}"
            )
        known = [(one, self._alone[one.engine].tally) for one in self.candidates if one.engine in self._alone]
        able = [(_excess(self.promise, tally), one, tally) for one, tally in known if not _failed(tally)]
        if not able:
            candidate, why = self.left_out[0]
            return f"no setting serves this load; {candidate.describe()}: {why}"
        _, nearest, tally = min(able, key=lambda row: row[0])
        share = self.promise.share
        return (
            f"no setting keeps {asked}; the nearest is {nearest.describe()}: of requests that are alone, "
            f"{share * 100:g} % have a TTFT of {round_up(tally.ttft.percentile(share), 3):.3g} s and a TPOT of "
            f"{round_up(tally.tpot.percentile(share), 3):.3g} s"
        )

    def _distance(self, crowded: tuple[Candidate, int]) -> tuple[bool, float]:
        """How far so many machines are from the promise: less is nearer, and requests that are lost are farthest."""
        tally = self._trial(*crowded).tally
        return _failed(tally), _excess(self.promise, tally)

    # ---- one candidate ----

    def _is_fast(self, candidate: Candidate) -> bool:
        """Whether requests that are alone keep the promise."""
        alone = self._alone.get(candidate.engine)
        if alone is None:
            service = replace(self._service(candidate.deployment), replicas=1, failures=None)
            simulation = service.simulation(self.load, self.promise.slo)
            simulation.asks = _Alone(simulation.asks)
            tally = self._simulate(simulation, f"{candidate.describe()}, alone")
            alone = self._alone[candidate.engine] = _Trial(tally, self._broken(tally))
        if alone.broken is not None:
            self.left_out.append((candidate, f"even of requests that are alone, {alone.broken}"))
        return alone.broken is None

    def _try(self, candidate: Candidate) -> None:
        """Find the fewest machines, if they cost no more than the best settings."""
        most = max(1, candidate.deployment.most_replicas // candidate.copies)
        if len(best := self.best) == BEST:
            most = min(most, math.floor(best[-1].cost_per_hour / candidate.price * (1 + 1e-9)))
        if not most:
            return
        start = max(1, round(self._estimate(candidate)))
        count = fewest(lambda machines: self._trial(candidate, machines).broken is None, start, most)
        if count is None:
            if len(best) < BEST:
                self._crowded.append((candidate, most))
                self.left_out.append(
                    (candidate, f"{most * candidate.copies:,} replicas do not keep the promise")
                )
            return
        one = self._trial(candidate, count)
        per_s = self._per_s or one.tally.answered / max(1e-9, one.tally.last_s)
        fewer = self._lost(candidate, count - 1) if count > 1 else None
        setting = Setting(candidate, count, one.tally, per_s, one.prompt_share, fewer)
        key = (candidate.machine.label, candidate.format)
        if key not in self._found or setting.rank < self._found[key].rank:
            self._found[key] = setting

    def _trial(self, candidate: Candidate, machines: int) -> _Trial:
        key = (candidate.engine, machines * candidate.copies)
        if key not in self._trials:
            service = replace(self._service(candidate.deployment), replicas=key[1])
            load = self._sized(candidate)
            requests = load.expected if self._requests is None else self._requests
            simulation = trial(service, load, self.promise, requests)
            simulation.times = times = MeteredTimes(
                candidate.deployment.cost, candidate.deployment.kept_tokens
            )
            tally = self._simulate(simulation, _name(candidate, key[1]))
            share = min(1.0, times.prompts_s / max(1e-9, simulation.busy_s))
            self._trials[key] = _Trial(tally, self._broken(tally), share)
        return self._trials[key]

    def _lost(self, candidate: Candidate, machines: int) -> str:
        """What a number of machines that was tried breaks. A simulation stops when the promise is lost."""
        one = self._trial(candidate, machines)
        return f"{one.broken}, of the first {one.tally.answered:,} requests"

    def _simulate(self, simulation: Simulation, name: str) -> Tally:
        self.simulations += 1
        return self._run(simulation, name)

    def _broken(self, tally: Tally) -> str | None:
        broken = self.promise.broken(tally)
        if broken is not None and tally.reasons:
            broken += f" ({tally.reasons.most_common(1)[0][0]})"
        return broken

    def _sized(self, candidate: Candidate) -> Load:
        """The load, with a length if that is open."""
        load = self.load
        if self._requests is not None:
            return load
        turns, rate = load.workload.turns, load.arrivals.rate_per_s
        answers_s = turns * self._alone[candidate.engine].tally.e2e.percentile(0.5)
        pauses_s = (turns - 1) * load.pause_s
        seconds = max(LEAST_S, LEAST_LIVES * answers_s + 2 * pauses_s, LEAST_REQUESTS / (rate * turns))
        return replace(load, duration_s=min(seconds, MOST_REQUESTS / (rate * turns)))

    def _estimate(self, candidate: Candidate) -> float:
        """About how many machines are needed, by the time that a request takes in the largest batch whose steps are
        within the promise. Says where to begin, and never what is out."""
        if not self._per_s:
            return 1.0
        deployment, tally = candidate.deployment, self._alone[candidate.engine].tally
        count = max(1, tally.answered)
        computed = max(1, (tally.prompt_tokens - tally.cached_tokens) // count)
        output = tally.output_tokens / count
        context = tally.prompt_tokens / count + output / 2
        cost, batch = deployment.cost, deployment.scheduler.max_num_seqs
        blocks = [
            one.num_blocks * one.block_size
            for one in deployment.groups
            if one.window is None and not one.is_state
        ]
        batch = max(1, min([batch, *(int(tokens / (context + output / 2)) for tokens in blocks)]))
        limit = self.promise.tpot or math.inf
        while batch > 1 and cost.decoding_s(batch, batch * context) > limit:
            batch = batch * 3 // 4
        chunk = deployment.scheduler.max_num_batched_tokens
        each = cost.prefill_s(computed, 0, chunk) + output * cost.decoding_s(batch, batch * context) / batch
        return max(1.0, self._per_s * each / candidate.copies)


def fewest(keeps: Callable[[int], bool], start: int, most: int) -> int | None:
    """The smallest number from 1 to `most` for which `keeps` is true, if it is for all larger ones; None where it is
    for none. Looks near `start` first."""
    low, high = 0, most + 1
    count = min(start, most)
    stride = max(1, count // 4)
    while high - low > 1:
        if keeps(count):
            high = count
        else:
            low = count
        if high > most:
            count = min(most, low + stride)
        elif low == 0:
            count = max(1, high - stride)
        else:
            count = (low + high) // 2
        stride *= 2
    return high if high <= most else None


@dataclass(frozen=True, slots=True)
class _Alone:
    """The first requests of others, so far apart that each is alone; satisfies `requests.Asks`."""

    asks: Asks

    def first(self) -> Iterator[Ask]:
        for number, ask in enumerate(itertools.islice(self.asks.first(), MOST_ALONE)):
            yield replace(ask, arrival_s=number * _GAP_S)

    def after(self, ask: Ask, now: float) -> Ask | None:
        return self.asks.after(ask, now)


def _fitted(
    load: Load, candidates: Sequence[Candidate], out: list[tuple[Candidate, str]]
) -> tuple[Load, list[Candidate]]:
    """The load, with lengths cut to the longest context that there is, and the candidates that hold them: all serve the
    same requests. The others are added to `out`. Requests of a trace stay as they are."""
    if load.trace is not None:
        return load, list(candidates)
    longest = max(one.deployment.max_model_len for one in candidates)
    workload = load.workload.within(longest)
    fitting = []
    for one in candidates:
        length = one.deployment.max_model_len
        try:
            fits = workload.within(length) == workload
        except ConfigError:
            fits = False
        if fits:
            fitting.append(one)
        else:
            out.append(
                (one, f"its memory holds sequences of {length:,} tokens, and this load has longer ones")
            )
    return replace(load, workload=workload), fitting


def _demand(load: Load, candidates: Sequence[Candidate]) -> tuple[float | None, float | None]:
    """(requests, requests a second) of the load: None for a length that is open, and for requests that come at once.

    Raises ConfigError for more than MOST_REQUESTS.
    """
    rate = load.arrivals.rate_per_s
    if load.trace is not None:
        vocab_size = candidates[0].deployment.scheduler.vocab_size
        count, last_s = 0, 0.0
        for ask in itertools.islice(load.asks(vocab_size).first(), MOST_REQUESTS + 1):
            count, last_s = count + 1, ask.arrival_s
        _check_size(count, "in this trace, or more")
        return count, (count - 1) / last_s if last_s else None
    turns = load.workload.turns
    if load.count is None and math.isinf(load.duration_s):
        _check_size(LEAST_S * rate * turns, f"in {LEAST_S:g} s")
        return None, rate * turns
    _check_size(load.expected, "in this load")
    return load.expected, None if math.isinf(rate) else rate * turns


def _check_size(requests: float, where: str) -> None:
    if requests > MOST_REQUESTS:
        raise ConfigError(
            f"--search cheapest simulates up to {MOST_REQUESTS:,} requests many times, and there are {requests:,.0f} "
            f"{where}: lower --rate, or send fewer of them with --num-prompts or --duration"
        )


def _name(candidate: Candidate, replicas: int) -> str:
    return f"{candidate.describe()}, {replicas:,} {'replica' if replicas == 1 else 'replicas'}"


def _failed(tally: Tally) -> bool:
    return bool(tally.refused or tally.failed or not tally.answered)


def _excess(promise: Promise, tally: Tally) -> float:
    """How many times the worst of its times is longer than promised."""
    limits = ((promise.slo.ttft, tally.ttft), (promise.tpot, tally.tpot))
    return max(pool.percentile(promise.share) / limit for limit, pool in limits if limit is not None)
