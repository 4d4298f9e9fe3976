"""An HTTP/1.1 client for benchmarks, built for low cost per streamed token.

No coroutine is woken for a piece of a stream. The transport calls `data_received`, which records the time and parses
the chunks; the caller is woken once, at the end of the answer. General clients pass each piece through several
coroutines, which costs several times as much CPU time, on cores that the server may be using.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

from headrace.errors import ConfigError

MAX_HEAD_BYTES = 64 * 2**10
MAX_ANSWER_BYTES = 256 * 2**20
"""Longest answer; a longer one is an error."""
_MAX_CHUNK_LINE = 1024


class HttpError(Exception):
    """There was no answer, or it was not HTTP/1.1. The message is one sentence."""


class Body(Protocol):
    """Receives the body of an answer."""

    def feed(self, now: float, data: bytes) -> None:
        """Add a piece, received at `now` on the clock of time.perf_counter."""
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """Header names are in lower case."""

    status: int
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a base URL points. `path` has no slash at its end."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises ConfigError if `url` is not an http or https URL."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            (host or "").encode("idna")
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or not re.fullmatch("[!-~]*", parts.path):
            raise ConfigError(f"--base-url must look like http://127.0.0.1:8000, got {url!r:.200}")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        return cls(host, port or (443 if tls else 80), parts.path.rstrip("/"), tls)

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._rest = b""
        self._parse = self._parse_head
        self._body: Body | None = None
        self._head: Head | None = None
        self._left = 0
        self._received = 0
        self._answer: asyncio.Future[Head] | None = None
        self.open = False
        self.touched = False
        """At least one byte of the current answer was received."""

    async def ask(self, request: bytes, body: Body) -> Head:
        """Send a request and feed `body`; returns at the end of the answer. Raises HttpError."""
        assert self._transport is not None and self._answer is None
        self._rest, self._parse, self._body = b"", self._parse_head, body
        self._head, self._received, self.touched = None, 0, False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            self._answer = None

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.WriteTransport, transport
        )  # uvloop's transport is one, without declaring it
        self.open = True

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._answer is None or self._answer.done():  # data without a request
            self.close()
            return
        self.touched = True
        self._received += len(data)
        if self._received > MAX_ANSWER_BYTES:
            self._fail(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
            return
        try:
            self._parse(now, self._rest + data if self._rest else data)
        except HttpError as error:
            self._fail(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._answer is None or self._answer.done():
            return
        if self._head is not None and self._parse == self._parse_to_end and exc is None:
            self._end()
        elif not self.touched:
            self._fail("the connection was closed without an answer")
        else:
            self._fail("the connection was closed in the middle of the answer")

    # ---- The parts of an answer ----

    def _parse_head(self, now: float, data: bytes) -> None:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(data[:7]):
                raise HttpError("the answer is not HTTP/1.1")
            self._rest = data
            return
        self._head = head = _head(data[:end])
        if head.status < 200:  # 100 Continue and the like; the answer follows
            self._rest = b""
            self._parse_head(now, data[end + 4 :])
            return
        if "chunked" in head.headers.get("transfer-encoding", "").lower():
            self._parse = self._parse_chunks
        elif "content-length" in head.headers or head.status in (204, 304):
            self._left = _number(head.headers.get("content-length", "0"), 10)
            self._parse = self._parse_length
        else:
            self._parse = self._parse_to_end
        self._rest = b""
        self._parse(now, data[end + 4 :])

    def _parse_length(self, now: float, data: bytes) -> None:
        self._left -= len(data)
        if data and self._body is not None:
            self._body.feed(now, data)
        if self._left < 0:
            raise HttpError("the answer is longer than its Content-Length")
        if self._left == 0:
            self._end()

    def _parse_to_end(self, now: float, data: bytes) -> None:
        if data and self._body is not None:
            self._body.feed(now, data)

    def _parse_chunks(self, now: float, data: bytes) -> None:
        pieces = []
        at, size = 0, -1
        while (line := data.find(b"\r\n", at)) >= 0:
            size = _number(data[at:line].split(b";", 1)[0].decode("latin-1"), 16)
            begin, end = line + 2, line + 2 + size
            if size == 0 or len(data) < end + 2:
                break
            if data[end : end + 2] != b"\r\n":
                raise HttpError("a chunk of the answer is longer than its size")
            pieces.append(data[begin:end])
            at = end + 2
        else:
            if len(data) - at > _MAX_CHUNK_LINE:
                raise HttpError("a chunk of the answer has no size")
        if pieces and self._body is not None:
            self._body.feed(now, pieces[0] if len(pieces) == 1 else b"".join(pieces))
        self._rest = data[at:]
        # The last chunk is followed by trailers and an empty line.
        if size == 0 and b"\r\n\r\n" in self._rest:
            self._end()

    def _end(self) -> None:
        assert self._head is not None and self._answer is not None
        if self._head.headers.get("connection", "").lower() == "close" or self._parse == self._parse_to_end:
            self.close()
        self._answer.set_result(self._head)

    def _fail(self, reason: str) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(HttpError(reason))


class Pool:
    """Connections to one address, reused where the server keeps them open."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Connection] = []

    async def ask(self, request: bytes, body: Body) -> Head:
        """Send a request on a connection of its own. Raises HttpError."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.open:
                continue
            try:
                return await self._ask(connection, request, body)
            except HttpError:
                if connection.touched:
                    raise
                # The server may close an idle connection at any time. Nothing was answered: send it again.
        return await self._ask(await self._connect(), request, body)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _ask(self, connection: Connection, request: bytes, body: Body) -> Head:
        try:
            head = await connection.ask(request, body)
        except BaseException:
            connection.close()
            raise
        if connection.open:
            self._idle.append(connection)
        return head

    async def _connect(self) -> Connection:
        address = self._address
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                Connection, address.host, address.port, ssl=address.tls
            )
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise HttpError(f"no connection to {address.authority}: {reason}") from error
        return connection


def request_bytes(
    address: Address, method: str, path: str, content: bytes = b"", api_key: str | None = None
) -> bytes:
    """A whole request with a JSON body. `path` is appended to the base URL's."""
    lines = [f"{method} {address.path}{path} HTTP/1.1", f"Host: {address.authority}", "Accept: */*"]
    if api_key is not None:
        lines.append(f"Authorization: Bearer {api_key}")
    if content:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + content


def _head(data: bytes) -> Head:
    first, *lines = data.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise HttpError("the answer is not HTTP/1.1")
    fields = (line.partition(":") for line in lines)
    return Head(int(words[1]), {name.strip().lower(): value.strip() for name, _, value in fields})


def _number(text: str, base: int) -> int:
    try:
        value = int(text.strip(), base)
    except ValueError:
        value = -1
    if not 0 <= value <= MAX_ANSWER_BYTES:
        raise HttpError(f"the answer gives an impossible length: {text!r:.40}")
    return value
