"""How late the event loop runs what is due."""

from __future__ import annotations

import asyncio

from headrace.server.requests.tallies import SECONDS, Histogram
from headrace.serving.system import MONOTONIC, Clock

LAG_INTERVAL_S = 0.05
LONGEST_LAG_S = 60.0
"""Longer gaps, such as a suspended machine, count once."""


class LoopLag:
    """Ticks at fixed times, and records how late each tick runs.

    Ticks that fall into a stall are recorded with the lag that each would have had, so that the share of samples
    above a bound is the share of time, and one long stall does not count as one late tick.
    """

    def __init__(self, interval_s: float = LAG_INTERVAL_S, clock: Clock = MONOTONIC) -> None:
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
        """Record the ticks that are due now, the first of them at `due`; returns the time of the last one."""
        now = self._clock()
        if now - due > LONGEST_LAG_S:
            self.histogram.observe(now - due)
            return now
        self.histogram.observe(max(0.0, now - due))
        while due + self._interval_s <= now:
            due += self._interval_s
            self.histogram.observe(now - due)
        return due
