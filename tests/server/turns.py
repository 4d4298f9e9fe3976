"""What an event loop does between two of its turns, counted: no clock is read, so a busy machine changes nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest
from starlette.types import Scope, Send

from headrace.server.http import events
from headrace.server.http.events import Write
from headrace.serving.client import process as process_client
from tests.server.conftest import TinyServer


@dataclass
class Work:
    """calls: of functions, Python's and C's. written: characters of JSON. read: bytes of messages of the engine.
    sent: bytes of messages to it. streamed: bytes of a stream that are handed to the connection.
    parsed: characters of JSON that the loop's own thread reads."""

    calls: int = 0
    written: int = 0
    read: int = 0
    sent: int = 0
    streamed: int = 0
    parsed: int = 0


@dataclass
class Turns:
    """The most that happened in one turn, and the sum over all of them."""

    most: Work = field(default_factory=Work)
    total: Work = field(default_factory=Work)
    turns: int = 0
    now: Work = field(default_factory=Work)

    def end_turn(self) -> None:
        now, self.now = self.now, Work()
        self.turns += 1
        for name in ("calls", "written", "read", "sent", "streamed", "parsed"):
            count = getattr(now, name)
            setattr(self.most, name, max(getattr(self.most, name), count))
            setattr(self.total, name, getattr(self.total, name) + count)


@contextmanager
def counted(server: TinyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """Count the work of a server's event loop, turn by turn. What is counted is done as ever."""
    turns, running = Turns(), True
    send_part, direct = events._send_part, events.direct_write
    parse = json.JSONDecoder.decode
    encode, decode, frame = json.JSONEncoder.encode, process_client.decode_from_engine, process_client.frame

    def encoded(self: json.JSONEncoder, value: Any) -> str:
        text = encode(self, value)
        turns.now.written += len(text)
        return text

    def parsed(self: json.JSONDecoder, text: str) -> Any:
        if asyncio._get_running_loop() is server.loop:
            turns.now.parsed += len(text)
        return parse(self, text)

    def decoded(payload: bytes) -> Any:
        turns.now.read += len(payload)
        return decode(payload)

    def framed(payload: bytes) -> bytes:
        turns.now.sent += len(payload)
        return frame(payload)

    async def streamed(send: Send, body: bytes) -> None:
        turns.now.streamed += len(body)
        await send_part(send, body)

    def counted_write(scope: Scope) -> Write | None:
        write = direct(scope)

        def written(part: bytes) -> bool:
            assert write is not None
            done = write(part)
            turns.now.streamed += len(part) if done else 0
            return done

        return None if write is None else written

    def profile(_: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            turns.now.calls += 1

    def tick() -> None:
        turns.end_turn()
        if running:
            asyncio.get_running_loop().call_soon(tick)

    async def begin() -> None:
        asyncio.get_running_loop().call_soon(tick)
        sys.setprofile(profile)

    async def end() -> None:
        sys.setprofile(None)

    with monkeypatch.context() as patched:
        patched.setattr(json.JSONEncoder, "encode", encoded)
        patched.setattr(json.JSONDecoder, "decode", parsed)
        patched.setattr(process_client, "decode_from_engine", decoded)
        patched.setattr(process_client, "frame", framed)
        patched.setattr(events, "_send_part", streamed)
        patched.setattr(events, "direct_write", counted_write)
        server.call(begin())
        try:
            yield turns
        finally:
            running = False
            server.call(end())
