"""Headers of every answer, and HEAD for every route with GET."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_REQUEST_ID_CHARS = 128

EVERYWHERE = (("X-Content-Type-Options", "nosniff"),)
"""Added by the HTTP layer, also to its own refusals."""

NO_STORE = "no-store"

_PLAIN = re.compile(rb"[A-Za-z0-9._:+=@/-]{1,%d}" % MAX_REQUEST_ID_CHARS)
"""No characters that a log, a shell or a page would interpret."""

_Headers = Iterable[tuple[bytes, bytes]]


def request_id(headers: _Headers) -> str:
    """The caller's X-Request-Id if there is one such header, short and plain; else a new id.

    It is for logs and people. Nothing is looked up by it, and two requests may have the same.
    """
    given = [value for name, value in headers if name == b"x-request-id"]
    if len(given) == 1 and _PLAIN.fullmatch(given[0]):
        return given[0].decode()
    return f"req_{uuid.uuid4().hex}"


def completed(headers: _Headers, request_id: str) -> list[tuple[bytes, bytes]]:
    """Headers of an answer, with X-Request-Id, and Cache-Control unless the answer sets it."""
    whole = [*headers, (b"x-request-id", request_id.encode())]
    if not any(name == b"cache-control" for name, _ in whole):
        whole.append((b"cache-control", NO_STORE.encode()))
    return whole


class HeadAsGet:
    """ASGI middleware: answers HEAD with the headers of GET, then disconnects, which ends streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_head(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        async def receive_until_started() -> Message:
            return {"type": "http.disconnect"} if started else await receive()

        await self._app({**scope, "method": "GET"}, receive_until_started, send_head)
