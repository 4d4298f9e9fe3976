"""Refuses request bodies above a size, announced or not, before they are held in memory."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.errors import error_body

MAX_BODY_BYTES = 32 * 2**20


class BodyLimit:
    """ASGI middleware: 413 for a body of more than `limit` bytes."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _announced(scope) > self._limit:
            response = JSONResponse(error_body(self._sentence, 413, "request_too_large"), 413)
            await response(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise HTTPException(413, self._sentence)
            return message

        await self._app(scope, counted, send)

    @property
    def _sentence(self) -> str:
        return f"the body is larger than {self._limit} bytes"


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
