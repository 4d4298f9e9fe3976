"""Engines that die, hang or cannot start again, and a client that outlives them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.errors import EngineDead, HeadraceError, ModelNotFound
from headrace.serving.client.process import ProcessClient
from headrace.serving.client.supervisor import Backoff, Supervisor
from headrace.serving.engine.state import EngineState
from headrace.serving.engine.watchdog import Watchdog
from tests.serving.client.test_process_client import (
    LONG,
    alive,
    children,
    idle,
    read,
    run_async,
    tokens_of,
    until,
)
from tests.serving.tiny_engine import COMMAND, CRASH, HANG
from tests.waiting import LONG_S

TIMEOUT_S = 0.4
SHORT = SamplingParams(max_tokens=3)


class Starter:
    """Starts tiny engines with `config`, which a test may change in between."""

    def __init__(self, timeout_s: float | None, **config: object) -> None:
        self.config = config
        self._timeout_s = timeout_s

    async def __call__(self) -> ProcessClient:
        watchdog = None if self._timeout_s is None else Watchdog(self._timeout_s)
        return await ProcessClient.start(self.config, command=COMMAND, watchdog=watchdog)


@asynccontextmanager
async def supervised(
    timeout_s: float | None = None, **config: object
) -> AsyncIterator[tuple[Supervisor, Starter]]:
    starter = Starter(timeout_s, **{"step_s": 0.002} | config)
    before = children()
    supervisor = await Supervisor.start(starter, Backoff(first_s=0.1, longest_s=0.2))
    try:
        yield supervisor, starter
    finally:
        await supervisor.aclose()
        assert supervisor.state is EngineState.DEAD
        assert children() == before


async def state(supervisor: Supervisor, expected: EngineState) -> None:
    await until(lambda: asyncio.sleep(0, supervisor.state is expected))


async def serves(supervisor: Supervisor) -> None:
    assert tokens_of(await read(await supervisor.submit(NewRequest("again", (1,), SHORT)))) == [2, 3, 4]
    await until(lambda: idle(supervisor))  # type: ignore[arg-type]


async def ends(
    supervisor: Supervisor,
    prompt: tuple[int, ...] = (1,),
    match: str = "",
    patience_s: float = LONG_S,
    signal_sent: signal.Signals | None = None,
) -> float:
    """Seconds that open streams take to end with an error, from when one of `prompt` was submitted.

    `signal_sent`: to the engine, once all of them are open. AssertionError after `patience_s`.
    """
    streams = [await supervisor.submit(NewRequest(f"r{i}", (1,), LONG)) for i in range(4)]
    started = time.monotonic()
    streams.append(await supervisor.submit(NewRequest("last", prompt, LONG)))
    reading = asyncio.gather(*map(read, streams), return_exceptions=True)
    if signal_sent is not None:
        os.kill(supervisor.pid, signal_sent)
    try:
        outcomes = await asyncio.wait_for(reading, patience_s)
    except TimeoutError as error:
        raise AssertionError("a stream was never ended") from error
    for outcome in outcomes:
        assert isinstance(outcome, EngineDead)
        assert match in str(outcome)
    return time.monotonic() - started


@run_async
async def test_a_killed_engine_is_replaced() -> None:
    async with supervised() as (supervisor, _):
        for count in (1, 2):
            first = supervisor.pid
            await ends(supervisor, match="was killed by SIGKILL", signal_sent=signal.SIGKILL)
            assert supervisor.state is EngineState.RESTARTING
            assert supervisor.trouble == "the engine process was killed by SIGKILL"
            with pytest.raises(EngineDead, match="is being restarted") as caught:
                await supervisor.submit(NewRequest("early", (1,)))
            assert caught.value.retry_after_s in (1, 2)
            with pytest.raises(EngineDead):
                await supervisor.stats()
            supervisor.abort("r0")
            await state(supervisor, EngineState.READY)
            assert supervisor.pid != first and not alive(first)
            assert supervisor.restarts == count and supervisor.trouble is None
            await serves(supervisor)


class Forgetful(ProcessClient):
    """The planted fault: when its engine dies, it ends all streams but one."""

    def _die(self, error: HeadraceError) -> None:
        for request_id in list(self._streams._streams)[:1]:
            del self._streams._streams[request_id]
        super()._die(error)


@run_async
async def test_a_stream_that_is_never_ended_is_noticed() -> None:
    client = await Forgetful.start({"step_s": 0.002}, command=COMMAND)
    supervisor = Supervisor(lambda: Forgetful.start({}, command=COMMAND), client, Backoff(first_s=0.1))
    try:
        with pytest.raises(AssertionError, match="never ended"):
            await ends(supervisor, patience_s=2, signal_sent=signal.SIGKILL)
    finally:
        await supervisor.aclose()


@run_async
async def test_a_failed_step_is_reported_without_internals() -> None:
    async with supervised() as (supervisor, _):
        await ends(supervisor, (CRASH,), "the engine ended in a step that failed")
        await state(supervisor, EngineState.READY)
        await serves(supervisor)


@run_async
async def test_a_stopped_engine_is_killed_and_replaced() -> None:
    async with supervised(TIMEOUT_S) as (supervisor, _):
        first = supervisor.pid
        assert await ends(supervisor, match="gave no sign of life", signal_sent=signal.SIGSTOP) > TIMEOUT_S
        await state(supervisor, EngineState.READY)
        assert not alive(first)
        await serves(supervisor)


@run_async
async def test_an_idle_engine_that_is_stopped_is_found() -> None:
    async with supervised(TIMEOUT_S) as (supervisor, _):
        os.kill(supervisor.pid, signal.SIGSTOP)
        await state(supervisor, EngineState.RESTARTING)
        await state(supervisor, EngineState.READY)
        await serves(supervisor)


@run_async
async def test_a_step_that_never_ends_is_killed() -> None:
    async with supervised(TIMEOUT_S) as (supervisor, _):
        assert await ends(supervisor, (HANG,), "gave no sign of life") > TIMEOUT_S
        await state(supervisor, EngineState.READY)
        await serves(supervisor)


LARGE: dict[str, object] = {"max_model_len": 8192, "max_num_batched_tokens": 8192, "num_blocks": 4096}


@run_async
async def test_a_large_step_gets_more_time() -> None:
    """The first one by its size, later ones by the first one; each takes three times the timeout."""
    config: dict[str, object] = {"token_s": 3 * TIMEOUT_S / 8000, "step_s": 0} | LARGE
    async with supervised(TIMEOUT_S, **config) as (supervisor, _):
        first = supervisor.pid
        for start in (1, 2, 3):
            new = NewRequest("large", (start,) * 8000, SamplingParams(max_tokens=1))
            assert tokens_of(await read(await supervisor.submit(new))) == [start + 1]
        assert supervisor.pid == first and supervisor.restarts == 0


@run_async
async def test_a_large_step_that_never_ends_is_found_by_the_pace_of_those_before() -> None:
    async with supervised(TIMEOUT_S, **LARGE) as (supervisor, _):
        large = NewRequest("large", (1,) * 8000, SamplingParams(max_tokens=1))
        await read(await supervisor.submit(large))
        assert await ends(supervisor, (HANG,) * 8000, "gave no sign of life") > TIMEOUT_S
        await state(supervisor, EngineState.READY)
        await serves(supervisor)


@pytest.mark.long
@run_async
async def test_without_a_watchdog_a_hang_is_not_noticed() -> None:
    """The proof that the tests above measure the watchdog."""
    async with supervised(None) as (supervisor, _):
        await supervisor.submit(NewRequest("r", (HANG,), LONG))
        await asyncio.sleep(3 * TIMEOUT_S)
        assert supervisor.state is EngineState.READY
        os.kill(supervisor.pid, signal.SIGKILL)


@run_async
async def test_a_slow_engine_is_not_restarted() -> None:
    async with supervised(TIMEOUT_S, step_s=TIMEOUT_S / 2) as (supervisor, _):
        first = supervisor.pid
        await read(await supervisor.submit(NewRequest("r", (1,), SamplingParams(max_tokens=5))))
        await asyncio.sleep(TIMEOUT_S)
        assert supervisor.pid == first and supervisor.restarts == 0


@run_async
async def test_failed_starts_are_repeated_and_reported() -> None:
    async with supervised() as (supervisor, starter):
        good, starter.config = starter.config, {"fail": True}
        os.kill(supervisor.pid, signal.SIGKILL)
        await until(lambda: asyncio.sleep(0, "cannot be loaded" in (supervisor.trouble or "")))
        assert supervisor.state is EngineState.RESTARTING
        assert supervisor.trouble == "the model cannot be loaded any more"
        starter.config = {"vanish": True}
        await until(lambda: asyncio.sleep(0, "while it started" in (supervisor.trouble or "")))
        starter.config = good | {"vocab": 1024}
        await until(lambda: asyncio.sleep(0, "not the one" in (supervisor.trouble or "")))
        starter.config = good
        await state(supervisor, EngineState.READY)
        assert supervisor.restarts == 1
        await serves(supervisor)


def test_a_first_start_that_fails_is_not_repeated() -> None:
    async def start() -> None:
        with pytest.raises(ModelNotFound):
            await Supervisor.start(Starter(None, fail=True))

    asyncio.run(start())


def test_a_load_that_never_ends_is_stopped() -> None:
    async def start() -> None:
        before = children()
        with pytest.raises(EngineDead, match=r"did not load its model within 0\.5 s"):
            await ProcessClient.start({"slow_load_s": 60}, command=COMMAND, start_timeout_s=0.5)
        assert children() == before

    asyncio.run(start())


@run_async
async def test_closing_while_there_is_no_engine() -> None:
    async with supervised() as (supervisor, starter):
        starter.config = {"slow_load_s": 60}
        os.kill(supervisor.pid, signal.SIGKILL)
        await state(supervisor, EngineState.RESTARTING)
        await asyncio.sleep(0.3)  # the next one is being started


@run_async
async def test_a_draining_engine_that_dies_is_not_replaced() -> None:
    async with supervised() as (supervisor, _):
        supervisor.drain()
        assert supervisor.state is EngineState.DRAINING
        await serves(supervisor)
        os.kill(supervisor.pid, signal.SIGKILL)
        await state(supervisor, EngineState.DEAD)
        await asyncio.sleep(0.3)
        assert supervisor.restarts == 0
        with pytest.raises(EngineDead, match="will not be restarted"):
            await supervisor.submit(NewRequest("late", (1,)))
