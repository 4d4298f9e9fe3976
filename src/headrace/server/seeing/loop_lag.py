"""How late the event loop is: what everything that a server does has to wait for."""

from __future__ import annotations

import asyncio

from headrace.server.seeing.histogram import SECONDS, Histogram
from headrace.serving.clock import MONOTONIC, Clock

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
