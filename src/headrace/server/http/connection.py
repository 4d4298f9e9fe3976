"""What one connection may do: limits, request heads that are refused, half-closed callers, HTTP/1.0, batched writes.

A caller that has left sends the same FIN as one that has only finished sending. Only a write tells them apart: the
system answers it with a reset if the caller has closed its end, and the next write fails, which ends the connection and
frees what its request holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

PROBE_DELAYS_S = (0.0, 0.02, 0.1, 0.5)
"""Delays of the first probes after the FIN; then one each second. A distant caller's reset takes a round trip."""

MAX_HELD_BYTES = 64 * 2**10
"""Bytes of one connection that are written at once, without waiting for the end of the turn."""

Fault = tuple[int, str, str]
"""Status, sentence and code of a refusal."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times in seconds. `body_timeout_s` is for each MiB of a body that has begun; `slow_reader_timeout_s` is the time
    to read 32 KiB when the buffers of the connection are full."""

    max_connections: int = 4096
    max_header_bytes: int = 64 * 2**10
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    keep_alive_timeout_s: float = 75.0
    slow_reader_timeout_s: float = 30.0


def fault(version: str, headers: Iterable[tuple[bytes, bytes]]) -> Fault | None:
    """Why a request head is refused, None if it is not. Header names are in lower case.

    The parser itself refuses lengths that contradict each other.
    """
    if version not in ("1.0", "1.1"):
        return 400, "this is not a request in HTTP/1.1", "bad_request"
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (version == "1.0" or value.strip(b" \t").lower() != b"chunked"):
            # A proxy with other codings, or with none in HTTP/1.0, finds another end of the body (RFC 9112, 6.1).
            return 400, "no transfer coding but chunked is known, and that in HTTP/1.1 alone", "bad_request"
        elif name == b"content-encoding" and value.strip(b" \t").lower() not in (b"", b"identity"):
            return 415, "bodies are read as they are: no content coding is known", "unsupported_media_type"
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return 400, "a request has one Host header", "bad_request"  # RFC 9112, 3.2
    return None


class HalfClosed:
    """Calls `probe` with the seconds since the FIN, until `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, probe: Callable[[float], None]) -> None:
        self._loop = loop
        self._since = loop.time()
        self._probe = probe
        self._delays = iter(PROBE_DELAYS_S)
        self._schedule()

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(next(self._delays, 1.0), self._due)

    def _due(self) -> None:
        self._schedule()
        self._probe(self._loop.time() - self._since)

    def stop(self) -> None:
        """End the probes."""
        self._timer.cancel()


def send_unchunked(cycle: RequestResponseCycle) -> None:
    """Send an answer of unknown length without chunks (RFC 9112, 6.3). The cycle must not have begun."""
    send = cycle.send
    unknown = False  # length of the answer

    async def send_raw(message: Any) -> None:
        nonlocal unknown
        if message["type"] == "http.response.start":
            unknown = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if unknown:
                cycle.chunked_encoding = False
        elif unknown:
            cycle.expected_content_length = len(message.get("body", b""))  # uvicorn compares the part with it
        await send(message)

    cycle.send = send_raw  # type: ignore[method-assign]


class WriteBatch:
    """Writes of many connections in one turn of an event loop, done back to back at its end.

    A step of the engine has tokens for every stream. A client process that is woken by the first write has read it
    before the second is encoded, sleeps, and is woken again: a process switch for each token of each stream. Writes
    back to back cost a fraction of that on both sides, and none is later than the last one would have been.
    """

    def __init__(self) -> None:
        self._waiting: list[BatchedTransport] = []

    def enlist(self, transport: BatchedTransport) -> None:
        """Call `flush` at the end of the turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(transport)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport in waiting:
            transport.flush()


class BatchedTransport:
    """An asyncio.Transport whose writes wait for the end of the turn."""

    def __init__(self, transport: asyncio.Transport, batch: WriteBatch) -> None:
        self._transport = transport
        self._batch = batch
        self._held: list[bytes] = []
        self._held_bytes = 0

    def __getattr__(self, name: str) -> Any:
        """All other methods are those of the transport."""
        return getattr(self._transport, name)

    def write(self, data: Any) -> None:
        if not self._held:
            self._batch.enlist(self)
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MAX_HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is held, unless the connection was lost: uvloop would raise."""
        held = self._held
        if held:
            self._held, self._held_bytes = [], 0
            if not self._transport.is_closing():
                self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def get_write_buffer_size(self) -> int:
        """Bytes that the caller has not read. Held bytes are flushed first, so that only the caller's delay counts."""
        self.flush()
        return self._transport.get_write_buffer_size()

    def write_eof(self) -> None:
        self.flush()
        self._transport.write_eof()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._held, self._held_bytes = [], 0
        self._transport.abort()
