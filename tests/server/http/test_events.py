"""Events reach the caller whole and in order, whether they are written directly or sent by a task that waits."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message, Scope

from headrace.core.types import FinishReason, Output
from headrace.errors import EngineDead
from headrace.server.http.events import DONE, EventStream, EventWriter, direct_write, event, offer
from headrace.serving.client.stream import OutputStream


class Numbers(EventWriter[Output]):
    """Writes the tokens of outputs; fails at token 666, and has nothing to say of 0."""

    def begin(self) -> bytes:
        return b"begin\n\n"

    def write(self, item: Output) -> bytes:
        (token,) = item.tokens
        if token == 666:
            raise RuntimeError("a bug in /work/place.py")
        return event({"token": token}) if token else b""


class Caller:
    """The other end of a connection, which takes parts or makes them wait."""

    def __init__(self, *, direct: bool = True) -> None:
        self.stream = OutputStream("r", 1)
        self.body = b""
        self.written = 0  # parts that came directly
        self.reads = asyncio.Event()
        self.reads.set()
        self.leaves = asyncio.Event()
        self.closed: list[None] = []
        self.scope: Scope = {"type": "http"}
        if direct:
            offer(self.scope, self._write)

    def start(self) -> asyncio.Task[None]:
        answer = EventStream(self.stream, Numbers(), lambda: self.closed.append(None))
        return asyncio.ensure_future(answer(self.scope, self._receive, self._send))

    def put(self, token: int, *, last: bool = False) -> None:
        reason = FinishReason.LENGTH if last else None
        self.stream.put(Output("r", 0, (token,), finish_reason=reason))

    async def _receive(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.reads.wait()
        self.body += message.get("body", b"")

    def _write(self, part: bytes) -> bool:
        if not self.reads.is_set():
            return False
        self.written += 1
        self.body += part
        return True


def in_loop(test: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


def expected(*tokens: int) -> bytes:
    return b"begin\n\n" + b"".join(event({"token": token}) for token in tokens if token) + DONE


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@in_loop
async def test_tokens_are_written_in_the_call_that_delivers_them() -> None:
    caller = Caller()
    answer = caller.start()
    await turns()
    for token in range(5):
        caller.put(token)
        if token:
            assert caller.body.endswith(event({"token": token}))  # without a turn of the loop
    assert caller.written == 4
    caller.put(5, last=True)
    await answer
    assert caller.body == expected(*range(6)) and caller.closed == [None]


@in_loop
async def test_a_server_without_direct_writes_uses_send() -> None:
    caller = Caller(direct=False)
    answer = caller.start()
    for token in range(5):
        caller.put(token, last=token == 4)
        await turns(2)
    await answer
    assert caller.written == 0 and caller.body == expected(*range(5))


@in_loop
async def test_unread_output_stays_in_the_source() -> None:
    caller = Caller()
    answer = caller.start()
    await turns()
    caller.reads.clear()
    for token in range(1, 100):
        caller.put(token)
        await turns(2)
    assert len(caller.stream._unread) == 98  # one is on its way
    caller.reads.set()
    await turns()
    assert caller.body + DONE == expected(*range(1, 100))
    before = caller.written
    caller.put(100)
    assert caller.written == before + 1  # directly again
    caller.put(101, last=True)
    await answer
    assert caller.body == expected(*range(1, 102))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("direct", [True, False])
def test_no_event_order_loses_or_delays_output(seed: int, direct: bool) -> None:
    async def run() -> None:
        dice = random.Random(seed)
        caller = Caller(direct=direct)
        answer = caller.start()
        for token in range(600):
            caller.put(token, last=token == 599)
            match dice.randrange(6):
                case 0:
                    caller.reads.clear()
                case 1 | 2:
                    caller.reads.set()
                case 3:
                    await turns(dice.randrange(4))
        caller.reads.set()
        await answer
        assert caller.body == expected(*range(600))

    asyncio.run(run())


@in_loop
async def test_an_engine_death_is_reported_after_earlier_output() -> None:
    caller = Caller()
    answer = caller.start()
    await turns()
    caller.put(1)
    caller.stream.fail(EngineDead("the engine is gone"))
    await answer
    rest = caller.body.removeprefix(b"begin\n\n" + event({"token": 1}))
    assert rest.endswith(DONE)
    error = json.loads(rest.removeprefix(b"data: ").split(b"\n\n")[0])["error"]
    assert error["message"] == "the engine is gone" and caller.closed == [None]


@pytest.mark.parametrize("backlog", [False, True])
def test_an_internal_error_ends_one_stream_without_details(backlog: bool) -> None:
    """It must not reach the caller of `put`, which is the reader of all streams."""

    async def run() -> None:
        caller = Caller()
        if backlog:
            caller.put(666)
        answer = caller.start()
        await turns()
        if not backlog:
            caller.put(666)
        await answer
        assert caller.body.endswith(DONE) and b'"internal_error"' in caller.body
        assert b"place" not in caller.body and caller.closed == [None]

    asyncio.run(run())


@in_loop
async def test_nothing_is_written_after_a_disconnect() -> None:
    caller = Caller()
    answer = caller.start()
    await turns()
    caller.leaves.set()
    await answer
    before = caller.body
    caller.put(1)
    assert caller.body == before and caller.closed == [None]


def test_a_scope_without_the_extension_has_no_direct_write() -> None:
    assert direct_write({"type": "http"}) is None
