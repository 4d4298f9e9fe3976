"""What one connection may do: limits, request heads that are refused, half-closed callers, and HTTP/1.0.

A caller that has left sends the same FIN. Only a write tells the two apart: the system answers it with a reset where
nobody reads any more, and the write after that fails, which ends the connection and frees what its request holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times in seconds. `body_timeout_s` is for each MiB of a body that has begun; `slow_reader_timeout_s` is what a
    caller gets to read 32 KiB when the buffers of its connection are full."""

    max_connections: int = 4096
    max_header_bytes: int = 64 * 2**10
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    keep_alive_timeout_s: float = 75.0
    slow_reader_timeout_s: float = 30.0


Fault = tuple[int, str, str]
"""Status, sentence and code of the refusal."""


def fault(version: str, headers: Iterable[tuple[bytes, bytes]]) -> Fault | None:
    """What is wrong with a head whose header names are in lower case; None for nothing.

    Lengths that contradict each other are refused by the parser itself.
    """
    if version not in ("1.0", "1.1"):
        return 400, "this is not a request in HTTP/1.1", "bad_request"
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (version == "1.0" or value.strip(b" \t").lower() != b"chunked"):
            # A reader that knows another coding, or none in HTTP/1.0, finds another end of the body (RFC 9112, 6.1).
            return 400, "no transfer coding but chunked is known, and that in HTTP/1.1 alone", "bad_request"
        elif name == b"content-encoding" and value.strip(b" \t").lower() not in (b"", b"identity"):
            return 415, "bodies are read as they are: no content coding is known", "unsupported_media_type"
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return 400, "a request has one Host header", "bad_request"  # RFC 9112, 3.2
    return None


DELAYS_S = (0.0, 0.02, 0.1, 0.5)
"""When to probe after the FIN, and then once more each second; a distant caller's reset takes a round trip."""


class HalfClosed:
    """Calls `probe` with the seconds since the FIN, until `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, probe: Callable[[float], None]) -> None:
        self._loop = loop
        self._since = loop.time()
        self._probe = probe
        self._delays = iter(DELAYS_S)
        self._timer: asyncio.TimerHandle | None = None
        self._next()

    def _next(self) -> None:
        self._timer = self._loop.call_later(next(self._delays, 1.0), self._due)

    def _due(self) -> None:
        self._next()
        self._probe(self._loop.time() - self._since)

    def stop(self) -> None:
        """Ends the probes."""
        if self._timer is not None:
            self._timer.cancel()


def send_unchunked(cycle: RequestResponseCycle) -> None:
    """Have `cycle` send what has no Content-Length as it is (RFC 9112, 6.3). The cycle must not have begun."""
    send = cycle.send
    unknown = False  # length of the answer

    async def send_as_is(message: Any) -> None:
        nonlocal unknown
        if message["type"] == "http.response.start":
            unknown = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if unknown:
                cycle.chunked_encoding = False
        elif unknown:
            cycle.expected_content_length = len(
                message.get("body", b"")
            )  # what uvicorn holds the part against
        await send(message)

    cycle.send = send_as_is  # type: ignore[method-assign]
