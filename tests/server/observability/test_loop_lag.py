"""Lag is measured in time: a stall counts for as long as it lasts."""

from __future__ import annotations

import time

import pytest

from headrace.server.observability.lag import LAG_INTERVAL_S, LONGEST_LAG_S, LoopLag
from tests.server.conftest import TinyServer
from tests.server.observability.scrape import Scrape


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_tick_on_time() -> None:
    clock = Clock()
    lag = LoopLag(0.05, clock)
    assert lag.note(clock.now) == clock.now
    assert (lag.histogram.count, lag.histogram.total) == (1, 0.0)


def test_a_stall_counts_for_all_missed_ticks() -> None:
    clock = Clock()
    lag = LoopLag(0.05, clock)
    due = clock.now
    clock.now += 1.0
    assert lag.note(due) == pytest.approx(due + 1.0, abs=0.05)
    assert lag.histogram.count in (20, 21)
    assert lag.histogram.total == pytest.approx(20 * 0.5, abs=0.6)  # 1.0, 0.95, 0.9 … 0.05, 0


def test_a_suspended_machine_counts_once() -> None:
    clock = Clock()
    lag = LoopLag(0.05, clock)
    due = clock.now
    clock.now += 8 * 3600
    assert lag.note(due) == clock.now
    assert lag.histogram.count == 1 and lag.histogram.total > LONGEST_LAG_S


def test_a_blocked_server_shows_it(tiny: TinyServer) -> None:
    def late(scrape: Scrape) -> float:
        name = "event_loop_lag_seconds"
        return scrape[f"{name}_count"] - scrape.get(f"{name}_bucket", le="0.1")

    before = Scrape.take(tiny.http)
    time.sleep(0.5)
    calm = Scrape.take(tiny.http)
    tiny.loop.call_soon_threadsafe(time.sleep, 0.6)
    time.sleep(0.7)
    blocked = Scrape.take(tiny.http)
    assert calm.since(before)["event_loop_lag_seconds_count"] >= 0.5 / LAG_INTERVAL_S - 2
    # The ticks of the first 0.5 of 0.6 seconds are more than 0.1 late; a busy machine adds some of its own.
    assert late(blocked.since(calm)) >= 0.5 / LAG_INTERVAL_S - 2
