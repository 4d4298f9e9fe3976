"""A real child process at the other end: what it answers, and what happens when either side dies."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import uvloop

from headrace import __version__
from headrace.core.params import SamplingParams
from headrace.core.types import FinishReason, NewRequest, Output
from headrace.errors import (
    EngineDead,
    HeadraceError,
    InvalidParams,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    RequestError,
)
from headrace.serving.client import process as process_client
from headrace.serving.client.process import MAX_UNSENT_BYTES, ProcessClient
from headrace.serving.client.source import arrivals
from headrace.serving.client.stream import MAX_UNREAD_BYTES, OutputStream
from headrace.serving.engine.state import EngineState
from headrace.serving.requests.generation import Generation
from headrace.serving.wire.connection import frame
from headrace.serving.wire.messages import Add, Hello, add, encode
from headrace.text.tokenizer import Tokenizer
from tests.places import TALE
from tests.serving.read import read as read_result
from tests.serving.tiny_engine import COMMAND, CRASH, FAIL
from tests.waiting import LONG_S

LONG = SamplingParams(max_tokens=400)


def run_async(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def wrapped() -> None:
        async def limited() -> None:
            await asyncio.wait_for(test(), 30)

        asyncio.run(limited())

    wrapped.__name__ = test.__name__
    return wrapped


@asynccontextmanager
async def engine(
    *, max_in_flight: int = 2048, max_unread_bytes: int = MAX_UNREAD_BYTES, **config: object
) -> AsyncIterator[ProcessClient]:
    client = await ProcessClient.start(
        config, command=COMMAND, max_in_flight=max_in_flight, max_unread_bytes=max_unread_bytes
    )
    try:
        yield client
    finally:
        await client.aclose()
        assert not alive(client.pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


async def read(stream: OutputStream) -> list[Output]:
    return [output async for outputs in arrivals(stream) for output in outputs]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + LONG_S
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def idle(client: ProcessClient) -> bool:
    stats = await client.stats()
    return stats.running == stats.waiting == 0 and stats.free_blocks == stats.total_blocks


def tokens_of(outputs: list[Output], index: int = 0) -> list[int]:
    return [token for output in outputs if output.index == index for token in output.tokens]


@run_async
async def test_many_streams() -> None:
    async with engine() as client:
        assert client.facts.model == "tiny"
        names = [f"r{i}" for i in range(40)]
        new_requests = [
            NewRequest(name, (10 * i,), SamplingParams(max_tokens=20, n=2)) for i, name in enumerate(names)
        ]
        streams = await asyncio.gather(*map(client.submit, new_requests))
        for i, outputs in enumerate(await asyncio.gather(*map(read, streams))):
            for index in range(2):
                assert tokens_of(outputs, index) == [10 * i + 1 + k for k in range(20)]
            ends = [output for output in outputs if output.finish_reason is not None]
            assert all(end.finish_reason is FinishReason.LENGTH and end.stats is not None for end in ends)
            assert len(ends) == 2
        assert await idle(client)


@run_async
async def test_refused_requests_do_not_affect_others() -> None:
    async with engine(step_s=0.002) as client:
        running = await client.submit(NewRequest("good", (1,), SamplingParams(max_tokens=100)))
        for prompt, params, error in (
            ((1,) * 600, None, PromptTooLong),
            ((5000,), None, InvalidParams),
            ((-1,), None, InvalidParams),
            ((2**70,), None, InvalidParams),
            ((1,) * 400, SamplingParams(stop_token_ids=(9000,)), InvalidParams),
        ):
            with pytest.raises(error):
                await client.submit(NewRequest("bad", prompt, params or SamplingParams()))
        with pytest.raises(InvalidParams, match="already running"):
            await client.submit(NewRequest("good", (1,)))
        with pytest.raises(InvalidParams):
            await client.submit(NewRequest("\ud800", (1,)))
        (failed,) = await read(await client.submit(NewRequest("fails later", (FAIL,))))
        assert (failed.finish_reason, failed.error) == (
            FinishReason.ERROR, "the tiny executor failed this sequence",
        )  # fmt: skip
        assert tokens_of(await read(running)) == list(range(2, 102))


@run_async
async def test_an_abort_frees_the_cache_and_ends_the_stream() -> None:
    async with engine(step_s=0.002) as client:
        stream = await client.submit(NewRequest("r", tuple(range(100)), LONG))
        await anext(arrivals(stream))
        client.abort("r")
        client.abort("r")
        client.abort("nobody")
        assert await read(stream) == []
        await until(lambda: idle(client))


@run_async
async def test_an_id_may_be_used_again_as_soon_as_its_request_has_ended_here() -> None:
    async def leave_while_it_runs(client: ProcessClient) -> None:
        stream = await client.submit(NewRequest("r", (1,), LONG))
        await anext(arrivals(stream))
        client.abort("r")
        client.abort("r")

    async def leave_while_it_is_submitted(client: ProcessClient) -> None:
        waiting = asyncio.create_task(client.submit(NewRequest("r", (1,), LONG)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

    async with engine(step_s=0.005) as client:
        for leave in (leave_while_it_runs, leave_while_it_is_submitted) * 3:
            await leave(client)
            outputs = await read(await client.submit(NewRequest("r", (100,), SamplingParams(max_tokens=5))))
            assert tokens_of(outputs) == [101, 102, 103, 104, 105], leave.__name__
            assert outputs[-1].finish_reason is FinishReason.LENGTH
        running = await client.submit(NewRequest("r", (1,), LONG))
        with pytest.raises(InvalidParams, match="already running"):
            await client.submit(NewRequest("r", (1,)))
        (lane,) = (await client.view()).snapshot.lanes
        assert lane.request_id == "r"
        client.abort(running.request_id)
        await until(lambda: idle(client))
        assert {output.request_id for output in (await client.view()).ended} == {"r"}


@run_async
async def test_a_stop_string_that_is_found_late_stops_no_other_request() -> None:
    tokenizer = Tokenizer.from_folder(TALE)
    async with engine(step_s=0.005) as client:
        text = tokenizer.decode(list(range(301, 311)))
        params = SamplingParams(max_tokens=10, stop=(text[4:8],))
        late = await Generation.start(client, tokenizer, NewRequest("r", (300,), params))
        await until(lambda: idle(client))
        stream = await client.submit(NewRequest("r", (100,), SamplingParams(max_tokens=50)))
        result = await read_result(late, tokenizer)
        assert result.outputs[0].finish_reason == "stop"
        assert tokens_of(await read(stream)) == list(range(101, 151))


@run_async
async def test_a_request_that_cannot_be_decoded_is_refused_and_harms_no_other() -> None:
    async with engine(step_s=0.002) as client:
        running = await client.submit(NewRequest("good", (1,), SamplingParams(max_tokens=100)))
        broken = Add("bad@1", msgspec.Raw(msgspec.msgpack.encode({"request_id": "bad", "prompt": [1, 2.0]})))
        with pytest.raises(InvalidParams, match="Expected `int`, got `float`"):
            await client._accepting.wait("bad@1", lambda: client._send(broken))
        assert tokens_of(await read(running)) == list(range(2, 102))


@run_async
async def test_one_completion_can_be_stopped() -> None:
    async with engine(step_s=0.002) as client:
        stream = await client.submit(NewRequest("r", (1,), SamplingParams(max_tokens=60, n=2)))
        await anext(arrivals(stream))
        client.abort("r", 1, stopped=True)
        ends = {o.index: o.finish_reason for o in await read(stream) if o.finish_reason is not None}
        assert ends == {0: FinishReason.LENGTH, 1: FinishReason.STOP}


@run_async
async def test_a_submission_that_is_cancelled_leaves_nothing_running() -> None:
    async with engine(step_s=0.05) as client:
        await client.submit(NewRequest("busy", (1,), SamplingParams(max_tokens=4)))
        await asyncio.sleep(0.02)  # the engine is in a step, and answers after it
        waiting = asyncio.create_task(client.submit(NewRequest("r", (1,), LONG)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: idle(client))


@run_async
async def test_a_killed_engine_ends_everything_at_once() -> None:
    async with engine(step_s=0.01) as client:
        streams = [await client.submit(NewRequest(f"r{i}", (1,), LONG)) for i in range(5)]
        readers = [asyncio.create_task(read(stream)) for stream in streams]
        await asyncio.sleep(0.05)
        os.kill(client.pid, signal.SIGKILL)
        for reader in readers:
            with pytest.raises(EngineDead, match="was killed by SIGKILL"):
                await reader
        assert client.state is EngineState.DEAD
        with pytest.raises(EngineDead):
            await client.submit(NewRequest("late", (1,)))
        with pytest.raises(EngineDead):
            await client.stats()
        client.abort("r0")


def test_requests_at_the_instant_of_a_death() -> None:
    """On uvloop, where a write after the first that failed raises RuntimeError."""
    outcomes: list[type[BaseException] | None] = []

    async def ask(client: ProcessClient, kind: int) -> None:
        for number in itertools.count():
            if client.state is EngineState.DEAD:
                return
            try:
                if kind == 0:
                    await client.submit(NewRequest(f"late-{id(asyncio.current_task())}-{number}", (1,), LONG))
                elif kind == 1:
                    await client.stats()
                else:
                    client.abort(f"running-{number}")
            except EngineDead:
                outcomes.append(EngineDead)
            await asyncio.sleep(0)

    async def die() -> None:
        async with engine() as client:
            for number in range(4):
                await client.submit(NewRequest(f"running-{number}", (1,), LONG))
            os.kill(client.pid, signal.SIGKILL)
            os.waitid(
                os.P_PID, client.pid, os.WEXITED | os.WNOWAIT
            )  # its socket is closed, which this side has not noticed
            await asyncio.gather(*(ask(client, kind) for kind in (0, 1, 2, 0, 1)))

    async def limited() -> None:
        await asyncio.wait_for(die(), 30)

    for _ in range(5):
        uvloop.run(limited())
    assert outcomes and set(outcomes) == {EngineDead}


@run_async
async def test_an_executor_that_raises_ends_everything_with_its_reason() -> None:
    async with engine(step_s=0.002) as client:
        stream = await client.submit(NewRequest("r", (1,), LONG))
        crashing = await client.submit(NewRequest("crash", (CRASH,)))
        for one in (crashing, stream):
            with pytest.raises(EngineDead, match=r"^the engine ended in a step that failed$"):
                await read(one)
        assert client.state is EngineState.DEAD


@run_async
async def test_a_slow_reader_is_dropped() -> None:
    async with engine(
        max_unread_bytes=10_000, stream_interval_s=0.0
    ) as client:  # an update for each of 400 steps
        slow = await client.submit(NewRequest("slow", (1,), LONG))
        await until(lambda: idle(client))
        with pytest.raises(Overloaded, match="not read as fast"):
            await read(slow)
        assert tokens_of(await read(await client.submit(NewRequest("r", (1,), SamplingParams(max_tokens=3)))))


@run_async
async def test_a_request_whose_last_update_exceeds_the_bound_is_complete() -> None:
    """Nothing more will come for it, so its outputs may wait for their reader."""
    async with engine(
        max_unread_bytes=10_000, stream_interval_s=60.0
    ) as client:  # two updates: first and last
        slow = await client.submit(NewRequest("slow", (1,), LONG))
        await until(lambda: asyncio.sleep(0, slow.ended))
        assert len(tokens_of(await read(slow))) == 400


@run_async
async def test_an_engine_that_reads_nothing_uses_no_client_memory() -> None:
    async with engine() as client:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(process_client, "MAX_UNSENT_BYTES", MAX_UNSENT_BYTES // 32)
            await _fill_up(client, (2**31,) * (MAX_UNSENT_BYTES // 32 // 50))  # a tenth of the limit each


async def _fill_up(client: ProcessClient, prompt: tuple[int, ...]) -> None:
    os.kill(client.pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(client.submit(NewRequest(f"r{i}", prompt))) for i in range(12)]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        assert isinstance(task.exception(), Overloaded) and "does not read requests" in str(task.exception())
    os.kill(client.pid, signal.SIGCONT)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
    assert 1 <= len(refused) <= 3 and all(isinstance(outcome, RequestError) for outcome in outcomes)


@run_async
async def test_too_many_requests_are_refused() -> None:
    async with engine(max_in_flight=3, step_s=0.002) as client:
        first = await client.submit(NewRequest("a", (1,), SamplingParams(n=2, max_tokens=30)))
        with pytest.raises(Overloaded):
            await client.submit(NewRequest("b", (1,), SamplingParams(n=2)))
        second = await client.submit(NewRequest("c", (1,), SamplingParams(max_tokens=30)))
        await read(first)
        await read(second)
        await read(await client.submit(NewRequest("d", (1,), SamplingParams(n=3, max_tokens=2))))


@run_async
async def test_waiting_for_a_batch_does_not_spin() -> None:
    async with engine(batching="dynamic", batch_wait_s=0.3) as client:
        started = time.monotonic()
        stream = await client.submit(NewRequest("r", (1,), SamplingParams(max_tokens=3)))
        before = await client.stats()
        assert tokens_of(await read(stream)) == [2, 3, 4]
        assert time.monotonic() - started >= 0.3
        assert before.waiting == 1
        ticks = cpu_ticks(client.pid)
        await asyncio.sleep(0.3)
        assert cpu_ticks(client.pid) - ticks <= 2  # an idle engine sleeps on the socket


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


@run_async
async def test_closing_ends_what_runs() -> None:
    async with engine(step_s=0.01) as client:
        stream = await client.submit(NewRequest("r", (1,), LONG))
        await client.aclose()
        with pytest.raises(EngineDead, match="shut down"):
            await read(stream)
        await client.aclose()


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        ({"fail": True}, ModelNotFound, "there is no tiny model"),
        ({"vanish": True}, EngineDead, "ended with exit code 7 before its model was loaded"),
        ({"garbage": True}, EngineDead, "invalid data"),
        ({"unknown_option": 1}, EngineDead, "exit code 1"),
    ],
)
def test_an_engine_that_cannot_start(
    config: dict[str, object], error: type[HeadraceError], text: str
) -> None:
    async def start() -> None:
        with pytest.raises(error, match=text):
            await ProcessClient.start(config, command=COMMAND)

    asyncio.run(start())


@run_async
async def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    before = children()
    starting = asyncio.create_task(ProcessClient.start({"garbage": True}, command=(*COMMAND,)))
    await until(lambda: asyncio.sleep(0, children() != before))
    starting.cancel()
    with pytest.raises((asyncio.CancelledError, EngineDead)):
        await starting
    assert children() == before


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.parametrize("busy", [False, True])
def test_the_engine_process_ends_with_its_parent(busy: bool) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen([*COMMAND, "--fd", str(theirs.fileno())], pass_fds=[theirs.fileno()])
    step_s = 600 if busy else 0
    ours.sendall(frame(encode(Hello(__version__, f'{{"step_s": {step_s}}}'))))
    assert ours.recv(4)  # ready
    if busy:
        ours.sendall(frame(encode(add(NewRequest("r", (1,), LONG)))))
        time.sleep(0.3)
    ours.close()
    assert process.wait(LONG_S) == 0
