"""The simulation: events in the order of their times, over replicas behind a router."""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.core.engine import Engine
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest, Output
from headrace.errors import HeadraceError
from headrace.sim.simulate.executor import SimulatedExecutor
from headrace.sim.simulate.failures import Failures, Outages
from headrace.sim.simulate.replica import Replica
from headrace.sim.simulate.requests import Ask, Asks
from headrace.sim.simulate.router import Router
from headrace.sim.simulate.tally import Tally
from headrace.sim.simulate.times import StepTimes

MakeEngine = Callable[[], tuple[Engine, SimulatedExecutor]]
Progress = Callable[[], object]
"""Called for each request that was answered."""

_END, _START = 0, 2
"""At one time: first steps end, then requests arrive, then steps start."""


@dataclass(slots=True)
class _Flight:
    """A request that was sent and has not ended."""

    ask: Ask
    replica: int | None = None
    attempts: int = 0


class Observer:
    """Is shown the replicas every `interval_s` of simulated time."""

    interval_s = math.inf

    def tick(self, now: float, replicas: list[Replica]) -> None:
        """All steps that have ended by `now` are applied."""

    def ended(self, replica: int, output: Output) -> None:
        """A request has ended."""


@dataclass(slots=True)
class Simulation:
    """`most_waiting`: requests that a replica holds at most, further ones are refused; None: no limit. `retries`: how
    often a request is sent again after the replica that had it failed. `is_enough`: asked after each answer whether to
    stop, with requests unfinished."""

    asks: Asks
    make_engine: MakeEngine
    times: StepTimes
    tally: Tally
    router: Router
    num_replicas: int = 1
    failures: Failures | None = None
    most_waiting: int | None = None
    retries: int = 3
    skipping: bool = True
    observer: Observer | None = None
    progress: Progress | None = None
    is_enough: Callable[[Tally], bool] | None = None
    replicas: list[Replica] = field(init=False)
    now: float = field(init=False, default=0.0)
    _busy_s: float = field(init=False, default=0.0)  # of replicas until they failed
    _drafting_s: float = field(init=False, default=0.0)  # likewise
    _events: list[tuple[float, int, int]] = field(init=False, default_factory=list)
    _later: list[tuple[float, int, Ask]] = field(init=False, default_factory=list)
    _stranded: list[Ask] = field(init=False, default_factory=list)  # while every replica is down
    _flights: dict[str, _Flight] = field(init=False, default_factory=dict)
    _outages: Outages | None = field(init=False, default=None)
    _enough: bool = field(init=False, default=False)

    def run(self) -> Tally:
        """Send every request, and run until all have ended."""
        self.replicas = [self._replica() for _ in range(self.num_replicas)]
        if self.failures is not None:
            self._outages = Outages(self.failures, self.num_replicas)
        first = self.asks.first()
        upcoming = next(first, None)
        tick_s = 0.0 if self.observer is not None else math.inf
        while True:
            arrival_s = upcoming.arrival_s if upcoming is not None else math.inf
            if self._later and self._later[0][0] < arrival_s:
                arrival_s = self._later[0][0]
            step = self._next_step()
            if self._enough or (arrival_s == math.inf and not self._flights):
                break
            outage_s = math.inf if self._outages is None else self._outages.next_s
            now = min(arrival_s, step[0], outage_s)
            if tick_s < now:
                self._show(tick_s)
                tick_s += self.observer.interval_s if self.observer is not None else math.inf
                continue
            self.now = now
            if outage_s <= now:
                self._change()
            elif step[0] == now and (step[1] == _END or arrival_s > now):
                heapq.heappop(self._events)
                self._step(step[2], arrival_s)
            elif self._later and self._later[0][0] == arrival_s:
                self._send(heapq.heappop(self._later)[2])
            else:
                assert upcoming is not None
                self._send(upcoming)
                upcoming = next(first, None)
        if self.observer is not None:
            self._show(self.now)
        return self.tally

    @property
    def busy_s(self) -> float:
        """Seconds in which replicas ran steps, summed over all of them."""
        return self._busy_s + sum(replica.busy_s for replica in self.replicas)

    @property
    def drafting_s(self) -> float:
        """Seconds of `busy_s` in which they drafted."""
        return self._drafting_s + sum(replica.drafting_s for replica in self.replicas)

    def _replica(self) -> Replica:
        engine, executor = self.make_engine()
        return Replica(engine, executor, self.times, self.tally, skipping=self.skipping)

    def _show(self, now: float) -> None:
        assert self.observer is not None
        for replica in self.replicas:
            replica.settle(now)
        self.observer.tick(now, self.replicas)

    # ---- replicas ----

    def _next_step(self) -> tuple[float, int, int]:
        events = self._events
        while events:
            time, _, index = events[0]
            if self.replicas[index].next_s == time:
                return events[0]
            heapq.heappop(events)
        return (math.inf, _END, 0)

    def _expect(self, index: int) -> None:
        replica = self.replicas[index]
        if replica.next_s != math.inf:
            heapq.heappush(self._events, (replica.next_s, _END if replica.is_running else _START, index))

    def _step(self, index: int, arrival_s: float) -> None:
        """What runs at a replica ends, if anything does. The next step starts unless a request arrives just now."""
        replica = self.replicas[index]
        if replica.is_running:
            for output in replica.finish():
                self._end(index, output)
            if arrival_s <= self.now or (self._later and self._later[0][0] <= self.now):
                replica.next_s = self.now
                self._expect(index)
                return
        for key, error in replica.start(self.now):
            self._drop(key, error)
        self._expect(index)

    def _end(self, index: int, output: Output) -> None:
        flight = self._flights.pop(output.request_id)
        ask, stats = flight.ask, output.stats
        if self.observer is not None:
            self.observer.ended(index, output)
        if output.error is not None or stats is None:
            self.tally.failed += 1
            return
        self.router.ended(ask, index)
        self.tally.finish(stats, self.now)
        following = self.asks.after(ask, self.now)
        if following is not None:
            heapq.heappush(self._later, (following.arrival_s, following.number, following))
        if self.is_enough is not None:
            self._enough = self.is_enough(self.tally)
        if self.progress is not None:
            self.progress()

    def _drop(self, key: str, error: HeadraceError) -> None:
        """The engine takes no such request."""
        flight = self._flights.pop(key)
        assert flight.replica is not None
        self.router.ended(flight.ask, flight.replica)
        self.tally.failed += 1
        self.tally.reasons[str(error)] += 1

    # ---- requests ----

    def _send(self, ask: Ask) -> None:
        self.tally.sent += 1
        key = ask.key
        self._flights[key] = flight = _Flight(ask)
        self._route(key, flight)

    def _route(self, key: str, flight: _Flight) -> None:
        up = [index for index in range(self.num_replicas) if self._is_up(index)]
        if not up:
            self._stranded.append(flight.ask)
            return
        ask = flight.ask
        index = self.router.choose(ask, up, self.replicas)
        replica = self.replicas[index]
        if self.most_waiting is not None and replica.unfinished >= self.most_waiting:
            del self._flights[key]
            self.tally.refused += 1
            return
        flight.replica = index
        flight.attempts += 1
        new = NewRequest(key, ask.prompt, _params(ask.output_tokens), user=ask.user)
        replica.add(new, ask.arrival_s, self.now)
        self.router.sent(ask, index)
        self._expect(index)

    # ---- failures ----

    def _is_up(self, index: int) -> bool:
        return self._outages is None or self._outages.is_up(index)

    def _change(self) -> None:
        """A replica fails, and its requests are sent again to others; or it is back, with an empty cache."""
        assert self._outages is not None
        index = self._outages.change()
        if self._outages.is_up(index):
            self.replicas[index].is_up = True
            stranded, self._stranded = self._stranded, []
            for ask in stranded:
                self._route(ask.key, self._flights[ask.key])
            return
        self.tally.outages += 1
        self._busy_s += self.replicas[index].busy_until(self.now)
        self._drafting_s += self.replicas[index].drafting_s
        self.replicas[index] = self._replica()
        self.replicas[index].is_up = False
        self.router.lost(index)
        lost = [(key, flight) for key, flight in self._flights.items() if flight.replica == index]
        for key, flight in lost:
            flight.replica = None
            if flight.attempts > self.retries:
                del self._flights[key]
                self.tally.failed += 1
                self.tally.reasons["the replica failed, as did those before it"] += 1
            else:
                self.tally.retries += 1
                self._route(key, flight)


@functools.lru_cache(maxsize=4096)
def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
