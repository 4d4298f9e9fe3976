"""HTTP/1.1 on one connection, with limits for callers that send or read slowly.

uvicorn's httptools protocol has no limit for the head of a request, for the time that a request takes to arrive, or for
a caller that does not read. Each would let a few cheap connections exhaust the server's memory or sockets.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
from functools import partial
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from headrace.server.http.connection import (
    BatchedTransport,
    ConnectionLimits,
    Fault,
    HalfClosed,
    WriteBatch,
    fault,
    send_unchunked,
)
from headrace.server.http.errors import error_body
from headrace.server.http.events import offer

RETRY_AFTER_S = 1

_BODY_UNIT = 2**20
_LEAST_READ_BYTES = 32 * 2**10
"""A caller that reads less than this in `slow_reader_timeout_s` is disconnected."""
_MAX_AHEAD = 100
"""Pipelined requests that may wait for the answer of an earlier one."""
_LINGER_S = 1.0
_LINGER_BYTES = 16 * 2**20
_LINGERING = 256

_log = logging.getLogger(__name__)


class _Awaited(enum.Enum):
    """What the caller sends next."""

    REQUEST = enum.auto()  # may never come
    HEAD = enum.auto()
    BODY = enum.auto()
    NOTHING = enum.auto()  # the last answer was sent


class _Skipped(enum.Enum):
    """Parser events that do not belong to a message of the caller; see `_parse`."""

    END = enum.auto()  # after a head that asks for another protocol
    HEAD = enum.auto()  # written by `_parse` to give a new parser the framing of the body


class _Stop(Exception):
    """Raised in callbacks of the parser, which then stops and calls `send_400_response`."""


class GuardedProtocol(HttpToolsProtocol):
    """A connection of uvicorn's within `limits`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        batch: WriteBatch,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._batch = batch
        self._awaited = _Awaited.HEAD
        self._received = 0  # bytes of the awaited head or body
        self._requests = 0  # received completely
        self._head_bytes = 0  # parsed so far
        self._begun = 0.0  # when that began, by the loop's clock
        self._arriving: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes in our buffer when `_reading` was set
        self._in_trailers = False  # header lines are now trailers of a chunked body
        self._fault: Fault | None = None  # of a head that is refused
        self._skipped: _Skipped | None = None  # parser events to ignore
        self._answered: RequestResponseCycle = None  # type: ignore[assignment]  # whose answer is next
        self._half_closed: HalfClosed | None = None  # once the caller has sent its last byte

    # ---- The connection ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, BatchedTransport(transport, self._batch)))
        if len(self.connections) > self._limits.max_connections:
            self._refuse(503, "too many connections are open: try again later", "too_many_connections")
        else:
            self._await(_Awaited.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        if self._half_closed is not None:
            self._half_closed.stop()
        if self.pipeline and not self._answered.response_complete:  # uvicorn notifies the newest request only
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._awaited is _Awaited.NOTHING:
            self._received += len(data)
            if self._received > _LINGER_BYTES:
                self.transport.abort()
            return
        if self._awaited is _Awaited.REQUEST and not data.strip(b"\r\n"):
            return  # some callers send an empty line after a body
        before = self._requests
        self._parse(data)
        if before == self._requests:  # else some bytes belonged to the previous request
            self._received += len(data)
        if self._awaited is _Awaited.HEAD and self._received > self._limits.max_header_bytes:
            self._refuse_head()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The caller has sent its last byte. Returns True to keep the connection open for pending answers."""
        if self._awaited is _Awaited.BODY and self.pipeline:
            self.pipeline.popleft()  # its body will never be complete; earlier requests are answered
            self.cycle = self.pipeline[0][0] if self.pipeline else self._answered
        elif self._awaited in (_Awaited.BODY, _Awaited.NOTHING):
            return False
        if not self._answering:
            return False
        self._await(_Awaited.REQUEST)
        self._half_closed = HalfClosed(self.loop, self._probe)
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _probe(self, waited_s: float) -> None:
        """Find out whether a half-closed caller has left.

        A write fails if the caller has closed its socket. Before the head of an answer only an interim response can be
        written, which clients of HTTP/1.1 skip. HTTP/1.0 has none: such a caller is disconnected after a short wait.
        """
        if self._answered.response_started:
            return
        if self._answered.scope["http_version"] == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif waited_s >= _LINGER_S:
            self.transport.abort()

    # ---- Requests as they arrive ----

    def _parse(self, data: bytes) -> None:
        """Feed the parser, which stops after a head with `Upgrade`.

        A server may ignore `Upgrade` (RFC 9110, 7.8), and the body follows as in any other request. The parser cannot
        resume, so a new one continues, after it was fed a head with the same framing. CONNECT is answered, and nothing
        after it is read.
        """
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                rest = data[stopped.args[0] :]
            except httptools.HttpParserError as error:
                self.send_400_response(str(error))
                return
            if self._skipped is None:  # CONNECT
                self._stop_timers()
                self._awaited = _Awaited.NOTHING
                return
            self._skipped = _Skipped.HEAD
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            framing = (b"content-length", b"transfer-encoding")
            head = [name + b": " + value + b"\r\n" for name, value in self.headers if name in framing]
            data = b"POST / HTTP/1.1\r\n" + b"".join(head) + b"\r\n" + rest

    def on_message_begin(self) -> None:
        if self._skipped is not None:
            return
        super().on_message_begin()
        self._head_bytes = 0
        self._in_trailers = False
        if self._awaited is _Awaited.REQUEST:
            self._await(_Awaited.HEAD)

    def on_url(self, url: bytes) -> None:
        if self._skipped is not None:
            return
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._skipped is not None:
            return
        if not self._in_trailers:  # trailers are not headers (RFC 9110, 6.5.1)
            super().on_header(name, value)
        self._count_head(len(name) + len(value))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.max_header_bytes:
            raise _Stop

    def on_headers_complete(self) -> None:
        if self._skipped is not None:
            self._skipped = None  # the head that `_parse` wrote itself
            return
        self._in_trailers = True
        self._fault = fault(self.parser.get_http_version(), self.headers)
        if self._fault is not None:
            raise _Stop
        super().on_headers_complete()
        scope = self.cycle.scope
        if b"%2f" in scope["raw_path"].lower():  # not a separator (RFC 3986, 2.2)
            scope["path"] = scope["raw_path"].decode("ascii")
        if self.parser.get_method() == b"CONNECT":
            self.cycle.keep_alive = False
        elif self.parser.should_upgrade():
            self._skipped = _Skipped.END
        if scope["http_version"] == "1.0":
            self.cycle.waiting_for_100_continue = False  # not in HTTP/1.0 (RFC 9110, 10.1.1)
            send_unchunked(self.cycle)
        offer(cast(Scope, scope), partial(self._write_part, self.cycle))
        if len(self.pipeline) > _MAX_AHEAD:
            raise _Stop
        self._await(_Awaited.BODY)

    def on_message_complete(self) -> None:
        if self._skipped is not None:
            return
        super().on_message_complete()
        self._requests += 1
        self._await(_Awaited.REQUEST)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._half_closed is not None and not self._answering:
            self.transport.close()
            return
        if self._awaited is _Awaited.BODY:
            # Either the answer came before the end of the body, or a second request waits with its body unread.
            self._await(_Awaited.BODY)
        if self._reading is None and not self.transport.is_closing():
            self._watch_reader()

    def send_400_response(self, msg: str) -> None:
        """Called when the parser stops with an error."""
        if self._head_bytes > self._limits.max_header_bytes:
            self._refuse_head()
        elif self._fault is not None:
            self._refuse(*self._fault)
        else:
            self._refuse(400, "this is not a request in HTTP/1.1", "bad_request")

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await(self, what: _Awaited) -> None:
        """Start the timeout of the next part."""
        self._awaited = what
        self._received = 0
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None
        if what in (_Awaited.HEAD, _Awaited.BODY):
            self._begun = self.loop.time()
            self._arriving = self.loop.call_at(self._due(), self._late)

    def _due(self) -> float:
        if self._awaited is _Awaited.HEAD:
            return self._begun + self._limits.header_timeout_s
        return self._begun + self._limits.body_timeout_s * (1 + self._received // _BODY_UNIT)

    def _late(self) -> None:
        self._arriving = None
        early = self._awaited is _Awaited.HEAD and self._answering
        if (
            early or self.pipeline or self.flow.read_paused
        ):  # it may come later, or has come and was not read yet
            self._begun = self.loop.time()
        if self.loop.time() < self._due():
            self._arriving = self.loop.call_at(self._due(), self._late)
            return
        if self._awaited is _Awaited.HEAD and not self._received:
            self.transport.close()  # opened by a browser in advance, and never used
            return
        self._refuse(408, "the request did not arrive in time", "request_timeout")

    # ---- Answers as they leave ----

    def _write_part(self, cycle: RequestResponseCycle, body: bytes) -> bool:
        """Write a part of a body as `cycle.send` does, if that need not wait; see `direct_write`."""
        if self.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _watch_reader(self) -> None:
        """Check later whether the caller has read the buffered bytes."""
        self._unread = self.transport.get_write_buffer_size()
        if self._unread:
            self._reading = self.loop.call_later(self._limits.slow_reader_timeout_s, self._check_reader)

    def _check_reader(self) -> None:
        self._reading = None
        left = self.transport.get_write_buffer_size()
        if not left:
            return
        if self._unread - left >= _LEAST_READ_BYTES:
            self._watch_reader()
            return
        _log.info("a caller does not read its answer: the connection is closed")
        self.transport.abort()  # the request is cancelled as after a disconnect

    # ---- Ends ----

    def _refuse_head(self) -> None:
        self._refuse(431, f"the head of the request is larger than {self._limits.max_header_bytes} bytes",
                     "request_header_fields_too_large")  # fmt: skip

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer without calling the app, and end the connection."""
        if self._awaited is _Awaited.NOTHING:
            return
        self._stop_timers()
        self._unset_keepalive_if_required()
        answering = self._answering
        if answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        crowded = len(self.connections) > self._limits.max_connections + _LINGERING
        if crowded or self.pipeline or (answering and self.cycle.response_started):
            self.transport.abort()
            return
        self._awaited, self._received = _Awaited.NOTHING, 0
        body = json.dumps(error_body(message, status, code)).encode()
        head = [STATUS_LINE[status]]
        head += [name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers]
        if status == 503:
            head.append(b"retry-after: %d\r\n" % RETRY_AFTER_S)
        head.append(
            b"content-type: application/json\r\ncache-control: no-store\r\ncontent-length: %d\r\n" % len(body)
        )
        head.append(b"connection: close\r\n\r\n")
        self.transport.write(b"".join(head) + body)
        # Closing with unread bytes would reset the connection, and a caller that still sends would lose the answer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._arriving = self.loop.call_later(_LINGER_S, self.transport.abort)

    def refuse_unfinished(self) -> None:
        """Called when the server begins to shut down: a request that is still arriving was not accepted."""
        if self._awaited is _Awaited.BODY and not self.pipeline:
            self._refuse(503, "the server is shutting down: try again later", "shutting_down")

    def shutdown(self) -> None:
        """Called after the drain: what still runs are live feeds, which have no end."""
        if self._awaited is not _Awaited.NOTHING:
            super().shutdown()
            self.loop.call_later(_LINGER_S / 2, self.transport.close)

    def _stop_timers(self) -> None:
        for timer in (self._arriving, self._reading):
            if timer is not None:
                timer.cancel()
        self._arriving = self._reading = None
