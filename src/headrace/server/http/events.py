"""Server-sent events (WHATWG HTML, section 9.2), as OpenAI's API streams them.

GuardedProtocol offers an ASGI extension in the request's scope, a direct write without a task switch. `send` still
begins and ends an answer, and sends parts to a caller that reads slower than they come.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.errors import HeadraceError
from headrace.server.http.errors import ErrorAnswer, error_body, headrace_error_body
from headrace.server.http.json_parts import PART_CHARS, json_parts, pieces
from headrace.server.http.pace import CallerLeft, while_connected
from headrace.serving.client.source import Source

Write = Callable[[bytes], bool]
"""Writes a part of the answer's body. Returns False, without writing, if `send` must be used, which waits."""

_NAME = "headrace.direct_write"


def offer(scope: Scope, write: Write) -> None:
    """Offer `write` to the response of a request."""
    scope.setdefault("extensions", {})[_NAME] = write


def direct_write(scope: Scope) -> Write | None:
    """The offered write, None without one."""
    write: Write | None = scope.get("extensions", {}).get(_NAME)
    return write


Chunk = Mapping[str, Any]
Item = TypeVar("Item")

DONE = b"data: [DONE]\n\n"

_log = logging.getLogger(__name__)


def event(chunk: Chunk) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named_events(events: Sequence[Mapping[str, Any]]) -> bytes:
    """Server-sent events named by their `type`, as in the Responses and Messages APIs."""
    return b"".join(b"event: %b\n%b" % (each["type"].encode(), event(each)) for each in events)


def event_parts(chunk: Chunk) -> Iterator[bytes]:
    """An event of any size, in parts; it may contain JsonLists and JsonNumbers."""
    yield b"data: "
    yield from json_parts(chunk)
    yield b"\n\n"


def failure_body(error: Exception) -> ErrorAnswer:
    """The error body of a failure in the middle of a stream."""
    if isinstance(error, HeadraceError):
        return headrace_error_body(error)
    return error_body("the server failed on this request", 500, "internal_error")


class EventWriter(Generic[Item]):
    """How the items of a source are written as events; these here end with [DONE]."""

    media_type = "text/event-stream"

    def begin(self) -> bytes:
        """Sent before the first item."""
        return b""

    def write(self, item: Item) -> bytes | Sequence[bytes]:
        """An item, in parts if it may be large; b"" if there is nothing to send yet."""
        raise TypeError(f"{type(self).__name__} writes no items")

    def end(self) -> Iterable[bytes]:
        """Sent after the last item, in parts between which others are served; b"" only yields to them."""
        return (DONE,)

    def fail(self, error: Exception) -> bytes:
        """Sent if the source or the writer fails after the status was sent."""
        return event(failure_body(error)) + DONE


class EventStream(Response, Generic[Item]):
    """Sends the items of a source as a writer formats them.

    With a direct write, an item goes from the source to the connection in the source's callback, without a task switch
    for each token. Items that the caller does not read stay in the source, which bounds them.

    `close` is called in any case, also when the caller leaves or the server shuts down; it must not block.
    """

    def __init__(self, source: Source[Item], writer: EventWriter[Item], close: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=writer.media_type)
        del self.headers["content-length"]
        self._source = source
        self._writer = writer
        self._close = close
        self._rest: deque[bytes] = deque()  # parts to send in later turns of the event loop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._stream(send, direct_write(scope)))
        except CallerLeft:
            _log.debug("a caller left in the middle of a stream")
        finally:
            self._close()

    async def _stream(self, send: Send, write: Write | None) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        try:
            part = self._writer.begin() + self._taken()
            while self._rest or not self._source.exhausted:
                if part:
                    await _send_part(send, part)  # waits until the caller reads
                if self._rest:
                    await asyncio.sleep(0)
                    part = self._rest.popleft()
                    continue
                if self._source.waiting:
                    await asyncio.sleep(0)  # the rest is written in a later turn of the event loop
                part = await self._passed_on(write)
            for more in self._writer.end():
                part += more
                if len(part) >= PART_CHARS:
                    await _send_part(send, part)
                    part = b""
                    await asyncio.sleep(0)
                elif not more:
                    await asyncio.sleep(0)
        except HeadraceError as error:
            part = self._writer.fail(error)
        except Exception as error:
            _log.error("a stream failed", exc_info=error)
            part = self._writer.fail(error)
        await _send_part(send, part)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _passed_on(self, write: Write | None) -> bytes:
        """Write items directly until the caller reads too slowly, or the end. Returns the part that is left to send."""
        source = self._source
        left: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def pass_on() -> None:
            try:
                part = self._taken()
                more = source.exhausted or source.waiting or self._rest
                if not more and (not part or (write is not None and write(part))):
                    return
                if not left.done():
                    source.listen(None)
                    left.set_result(part)
            except Exception as error:
                if not left.done():
                    left.set_exception(error)

        source.listen(pass_on)
        try:
            return await left
        finally:
            source.listen(None)

    def _taken(self) -> bytes:
        """Items that have come, as events: the first part if they are large."""
        written = list(map(self._writer.write, self._source.take()))
        if len(written) == 1 and isinstance(written[0], bytes):  # the usual case
            return written[0]
        parts: list[bytes] = []
        for one in written:
            if isinstance(one, bytes):
                parts.append(one)
            else:
                parts += one
        self._rest.extend(pieces(parts))
        return self._rest.popleft() if self._rest else b""


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
