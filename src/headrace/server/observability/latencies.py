"""Latencies: TTFT and ITL as clients of streams see them, and the delay of the event loop."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.observability.counts import SECONDS, Histogram
from headrace.serving.system import MONOTONIC, Clock

WINDOW_S = 60.0
MAX_SAMPLES = 4096
"""Newest samples that are kept of each kind: at a high rate the window is shorter."""

_arrived: ContextVar[float | None] = ContextVar("headrace_request_arrived", default=None)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds, nearest rank; None without a sample."""

    count: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class Arrival:
    """ASGI middleware, the outermost: notes when a request came, before its body is read and its key checked."""

    def __init__(self, app: ASGIApp, clock: Clock = MONOTONIC) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _arrived.set(self._clock())
        await self._app(scope, receive, send)


class Latencies:
    """Samples of all streams of a server. Cheap enough to be told of every token."""

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self.clock = clock
        self.ttfts: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)
        """(when it was taken, seconds)."""
        self.itls: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)

    def stream(self) -> StreamTimes:
        """Begin to watch the answer to the request that is being handled."""
        arrived = _arrived.get()
        return StreamTimes(self, self.clock() if arrived is None else arrived)

    def ttft(self) -> Percentiles:
        return _percentiles(self.ttfts, self.clock())

    def itl(self) -> Percentiles:
        return _percentiles(self.itls, self.clock())


class StreamTimes:
    """One streamed answer. Choices are told apart by their index; the first token of any is the first."""

    __slots__ = ("_arrived", "_last", "_latencies")

    def __init__(self, latencies: Latencies, arrived: float) -> None:
        self._latencies = latencies
        self._arrived = arrived
        self._last: dict[int, float] = {}

    def saw(self, index: int) -> None:
        """A piece of text of this choice goes to the client now."""
        latencies, last = self._latencies, self._last
        now = latencies.clock()
        if index in last:
            latencies.itls.append((now, now - last[index]))
        elif not last:
            latencies.ttfts.append((now, now - self._arrived))
        last[index] = now


def _percentiles(samples: deque[tuple[float, float]], now: float) -> Percentiles:
    while samples and samples[0][0] < now - WINDOW_S:
        samples.popleft()
    if not samples:
        return Percentiles(0)
    values = sorted(value for _, value in samples)
    return Percentiles(len(values), *(_nearest(values, share) for share in (0.5, 0.9, 0.99)))


def _nearest(values: list[float], share: float) -> float:
    return values[max(0, math.ceil(share * len(values)) - 1)]


INTERVAL_S = 0.05
LONGEST_S = 60.0
"""Longer gaps, as when a machine slept, count once."""


class LoopLag:
    """Ticks at fixed times, and notes how much later each tick is run.

    Ticks that a stall has swallowed are noted with the lag that each would have had, so that the share of samples
    above a bound is the share of time, and one long stall does not pass for one late tick.
    """

    def __init__(self, interval_s: float = INTERVAL_S, clock: Clock = MONOTONIC) -> None:
        self.histogram = Histogram(SECONDS)
        self._interval_s = interval_s
        self._clock = clock

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        due = self._clock()
        while True:
            due += self._interval_s
            wait_s = due - self._clock()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            due = self.note(due)

    def note(self, due: float) -> float:
        """Count the ticks that are due now, the first of them at `due`; returns when the last one was."""
        now = self._clock()
        if now - due > LONGEST_S:
            self.histogram.observe(now - due)
            return now
        self.histogram.observe(max(0.0, now - due))
        while due + self._interval_s <= now:
            due += self._interval_s
            self.histogram.observe(now - due)
        return due
