"""Server-sent events (WHATWG HTML, section 9.2), as OpenAI's API streams them."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.errors import HeadraceError
from headrace.server.disconnect import CallerLeft, while_connected
from headrace.server.errors import error_body, headrace_error_body

Chunk = Mapping[str, Any]

DONE = b"data: [DONE]\n\n"

_log = logging.getLogger(__name__)


def event(chunk: Chunk) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Sends each chunk as an event, then [DONE]; bytes are events already. An error becomes an event, too: the status
    has been sent by then.

    named: events carry their `type` as their name, and no [DONE] ends them, as /v1/responses has it.

    `close` is called in any case, also when the caller leaves or the server shuts down in the middle; it must not
    wait for anything.
    """

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncIterator[Chunk | bytes], close: Callable[[], None], *, named: bool = False
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._close = close
        self._named = named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._stream(send))
        except CallerLeft:
            _log.debug("a caller left in the middle of a stream")
        finally:
            self._close()

    async def _stream(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        try:
            async for chunk in self._chunks:
                await _send_part(send, self._written(chunk))
        except HeadraceError as error:
            await _send_part(send, self._written(headrace_error_body(error)))
        except Exception as error:
            _log.error("a stream failed", exc_info=error)
            body = error_body("the server failed on this request", 500, "internal_error")
            await _send_part(send, self._written(body))
        if not self._named:
            await _send_part(send, DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _written(self, chunk: Chunk | bytes) -> bytes:
        if isinstance(chunk, bytes):
            return chunk
        if not self._named:
            return event(chunk)
        if "error" in chunk and "type" not in chunk:
            chunk = {**chunk["error"], "type": "error"}
        return f"event: {chunk['type']}\n".encode() + event(chunk)


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
