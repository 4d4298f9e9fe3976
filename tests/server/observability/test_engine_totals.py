"""Sums over engines do not fall when one of them dies, and a silent engine does not delay a scrape."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from headrace.core.engine import EngineStats
from headrace.core.params import SamplingParams
from headrace.core.prefix_cache import CacheStats
from headrace.core.scheduler_counts import SchedulerStats
from headrace.core.types import NewRequest
from headrace.errors import EngineDead
from headrace.serving.client.process import ProcessClient
from headrace.serving.client.source import arrivals
from headrace.serving.client.supervisor import Backoff, Supervisor
from headrace.serving.client.totals import PolledTotals
from headrace.serving.engine.state import EngineState
from tests.serving.client.test_process_client import run_async
from tests.serving.tiny_engine import COMMAND, CRASH

NAMES = ("steps", "scheduled_tokens", "queries", "hits", "preemptions")


def stats(steps: int, tokens: int, running: int = 0) -> EngineStats:
    counts = SchedulerStats(steps=steps, scheduled_tokens=tokens, step_sizes=(steps, 0))
    return EngineStats(running, 0, 10, 10, counts, CacheStats(tokens, 0))


class Told:
    """A client that says what it was given."""

    restarts = 0

    async def stats(self) -> EngineStats:
        raise EngineDead("there is none")


def totals() -> PolledTotals:
    return PolledTotals(Told())  # type: ignore[arg-type]


def test_engines_are_added_up() -> None:
    summed = totals()
    summed.take(0, stats(5, 50))
    summed.take(0, stats(7, 90))
    summed.take(1, stats(2, 10))
    assert (summed["steps"], summed["scheduled_tokens"], summed["queries"]) == (9, 100, 100)
    summed.take(3, stats(1, 1))  # one that was never seen has been in between
    assert summed["steps"] == 10
    assert summed.under("step_size ") == {"0": 10, "1": 0}


def test_an_outdated_answer_is_ignored() -> None:
    summed = totals()
    summed.take(0, stats(7, 90, running=1))
    summed.take(0, stats(5, 50, running=9))
    assert summed["steps"] == 7 and summed.now is not None and summed.now.running == 1


@run_async
async def test_no_engine_runs_nothing() -> None:
    summed = totals()
    summed.take(0, stats(7, 90, running=1))
    await summed.poll()
    assert summed.now is None and summed["steps"] == 7


async def supervised() -> Supervisor:
    return await Supervisor.start(lambda: ProcessClient.start({}, command=COMMAND), Backoff(0.05, 0.1))


async def generate(client: Supervisor, prompt: tuple[int, ...]) -> None:
    stream = await client.submit(NewRequest(f"r{time.monotonic_ns()}", prompt, SamplingParams(max_tokens=5)))
    async for _ in arrivals(stream):
        pass


async def alive(client: Supervisor) -> None:
    while client.state is not EngineState.READY:
        await asyncio.sleep(0.01)


@run_async
async def test_a_restart_keeps_the_sums() -> None:
    client = await supervised()
    try:
        summed, before = PolledTotals(client), dict.fromkeys(NAMES, 0)
        for engine in range(3):
            for _ in range(2 if engine else 9):  # later ones have counted less than the first
                await generate(client, (1, 2, 3) * 5)
            await summed.poll()
            now = {name: summed[name] for name in NAMES}
            assert all(now[name] >= before[name] for name in NAMES) and now["steps"] > before["steps"]
            assert client.restarts == engine
            before = now
            with pytest.raises(EngineDead):
                await generate(client, (CRASH,))
            await alive(client)
        alone = PolledTotals(client)
        await alone.poll()
        assert alone["steps"] < before["steps"]  # the engine itself has begun anew
    finally:
        await client.aclose(0.0)


@run_async
async def test_a_stopped_engine_does_not_hold_up_a_scrape() -> None:
    client = await supervised()
    try:
        summed = PolledTotals(client, patience_s=0.1)
        await generate(client, (1, 2, 3))
        await summed.poll()
        steps = summed["steps"]
        os.kill(client.pid, signal.SIGSTOP)
        await summed.poll()
        assert summed["steps"] == steps
        os.kill(client.pid, signal.SIGCONT)
        await generate(client, (1, 2, 3))
        await summed.poll()
        assert summed["steps"] > steps
    finally:
        await client.aclose(0.0)
