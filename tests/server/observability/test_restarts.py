"""Metrics of a server whose engine is killed: they are there all the time, and no counter falls."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.server.observability.scrape import Scrape
from tests.server.observability.test_logs import served

STORY = "Once upon a time there was a fox who lived beside a mill. " * 3


def engine_of(process: subprocess.Popen[str]) -> int:
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def fell(before: Scrape, now: Scrape) -> list[str]:
    rising = ("_total", "_count", "_bucket", "_sum")
    return [
        f"{name} {dict(labels)}"
        for (name, labels), value in before.samples.items()
        if name.startswith("headrace:")
        and name.endswith(rising)
        and now.samples.get((name, labels), 0) < value
    ]


@pytest.mark.long
def test_counters_survive_the_engine() -> None:
    process, url = served(subprocess.DEVNULL)
    with httpx.Client(base_url=url, timeout=60) as http:
        for number in range(6):
            assert http.post("/v1/completions", json={"prompt": STORY, "max_tokens": 20}).status_code == 200
            assert (
                http.post("/v1/completions", json={"prompt": f"{number}", "max_tokens": 9}).status_code == 200
            )
        before = last = Scrape.take(http)
        os.kill(engine_of(process), signal.SIGKILL)
        states: set[str] = set()
        deadline = time.monotonic() + 60
        while "ready" not in states or len(states) < 2:
            now = Scrape.take(http)
            assert not fell(last, now)
            states |= set(now.under("engine_state", "state"))
            if "restarting" in now.under("engine_state", "state"):
                assert now["num_requests_running"] == now["kv_cache_usage_perc"] == 0
            last = now
            if states == {"ready"}:  # it has not been noticed yet
                states.clear()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert states == {"restarting", "ready"}
        assert http.post("/v1/completions", json={"prompt": STORY, "max_tokens": 5}).status_code == 200
        now = Scrape.take(http)
        assert not fell(before, now)
        seen = now.since(before)
        assert seen["engine_restarts_total"] == 1
        assert seen["generation_tokens_total"] == 5
        assert 0 < seen.histogram("iteration_tokens_total")[0] < before.histogram("iteration_tokens_total")[0]
    process.terminate()
    assert process.wait(30) == 0


def test_a_counter_that_falls_is_noticed() -> None:
    """As all of the engine's would, if each scrape showed the engine of the moment."""
    key = ("headrace:num_preemptions_total", frozenset[tuple[str, str]]())
    assert fell(Scrape({key: 5.0}), Scrape({key: 4.0})) == ["headrace:num_preemptions_total {}"]
    assert fell(Scrape({key: 5.0}), Scrape({})) and not fell(Scrape({key: 5.0}), Scrape({key: 5.0}))
