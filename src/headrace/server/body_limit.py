"""Refuses request bodies above a size, announced or not, before they are held in memory, and those that hold too much
for their size before they are read."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.body_work import HARMLESS_BYTES, MAX_WORK, BodyWork
from headrace.server.errors import error_body

MAX_BODY_BYTES = 16 * 2**20
"""A text of so many bytes is read in less than a tenth of a second."""

_TOO_MUCH = "the body holds more values than can be read while others wait: send it as several requests"


class BodyLimit:
    """ASGI middleware: 413 for a body of more than `limit` bytes, or of more work than MAX_WORK."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = _announced(scope)
        if announced is not None and announced > self._limit:
            response = JSONResponse(error_body(self._sentence, 413, "request_too_large"), 413)
            await response(scope, receive, send)
            return
        received = 0
        work = None if announced is not None and announced <= HARMLESS_BYTES else BodyWork()

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            body = message.get("body", b"")
            received += len(body)
            if received > self._limit:
                raise HTTPException(413, self._sentence)
            if work is not None and work.add(body) > MAX_WORK:
                raise HTTPException(413, _TOO_MUCH)
            return message

        await self._app(scope, counted, send)

    @property
    def _sentence(self) -> str:
        return f"the body is larger than {self._limit} bytes"


def _announced(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return None
