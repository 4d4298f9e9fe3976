"""Writes of one turn leave in one go: in order, whole, and no later than its end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import uvloop

from headrace.server.http.connection import MAX_HELD_BYTES, BatchedTransport, WriteBatch


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        async def all_of_it() -> None:
            await test()

        asyncio.run(all_of_it())

    return run


class Wire(asyncio.Transport):
    """Records calls."""

    def __init__(self, log: list[tuple[str, Any]], name: str = "") -> None:
        super().__init__()
        self.log, self.name = log, name

    def write(self, data: Any) -> None:
        self.log.append((self.name, bytes(data)))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 5

    def close(self) -> None:
        self.log.append((self.name, "close"))

    def write_eof(self) -> None:
        self.log.append((self.name, "eof"))

    def abort(self) -> None:
        self.log.append((self.name, "abort"))


def transports(*names: str) -> tuple[list[BatchedTransport], list[tuple[str, Any]]]:
    log: list[tuple[str, Any]] = []
    batch = WriteBatch()
    return [BatchedTransport(Wire(log, name), batch) for name in names], log


@in_loop
async def test_of_a_turn() -> None:
    (a, b), log = transports("a", "b")
    a.write(b"1")
    b.write(b"2")
    a.write(b"3")
    assert log == []
    await asyncio.sleep(0)
    assert log == [("a", b"13"), ("b", b"2")]
    b.write(b"4")
    await asyncio.sleep(0)
    assert log[2:] == [("b", b"4")]


@in_loop
async def test_held_bytes_do_not_count_as_unread() -> None:
    (a,), log = transports("a")
    a.write(b"1")
    assert a.get_write_buffer_size() == 5 and log == [("a", b"1")]
    await asyncio.sleep(0)
    assert log == [("a", b"1")]


@in_loop
async def test_of_many_tasks() -> None:
    """Tasks that wake in the same turn write before any byte leaves."""
    those, log = transports(*"abcdefgh")
    gate = asyncio.Event()
    seen: list[int] = []

    async def stream(transport: BatchedTransport) -> None:
        await gate.wait()
        transport.write(b"x")
        seen.append(len(log))

    tasks = [asyncio.ensure_future(stream(transport)) for transport in those]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    await asyncio.sleep(0)
    assert seen == [0] * 8 and len(log) == 8


@in_loop
async def test_ends_are_written_after_earlier_data() -> None:
    (a, b, c), log = transports("a", "b", "c")
    for transport in (a, b, c):
        transport.write(b"last")
    a.close()
    b.write_eof()
    c.abort()
    await asyncio.sleep(0)
    assert log == [("a", b"last"), ("a", "close"), ("b", b"last"), ("b", "eof"), ("c", "abort")]


@in_loop
async def test_large_writes_are_not_held() -> None:
    (a,), log = transports("a")
    a.write(b"x" * MAX_HELD_BYTES)
    assert log == []
    a.write(b"y")
    assert len(log) == 1 and len(log[0][1]) == MAX_HELD_BYTES + 1
    await asyncio.sleep(0)
    assert len(log) == 1


@pytest.mark.parametrize("lost", [True, False])
def test_a_lost_connection_does_not_affect_others(lost: bool) -> None:
    """On the loop that the server runs on, whose transports raise once they are closed."""

    async def run() -> bytes:
        made: list[BatchedTransport] = []
        batch = WriteBatch()

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(BatchedTransport(cast(asyncio.Transport, transport), batch))

        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        (_, first), (reader, second) = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        while len(made) < 2:
            await asyncio.sleep(0)
        if lost:
            made[0].abort()  # it is closed in this turn, before the batch is written
        for transport in made:
            transport.write(b"news")
        data = await reader.read(4)
        for closing in (first, second):
            closing.close()
        server.close()
        return data

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == b"news"
