"""A server that shuts down: requests at work are finished, new ones are refused with 503."""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.http.errors import error_body

RETRY_AFTER_S = 5
"""Time after which a service manager, or a load balancer, may have found another server."""

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_MAX_UNREAD_BYTES = 2**20


class Drain:
    """ASGI middleware that counts the requests at work, and answers new ones with 503 once `begin` was called.

    Reading (health, metrics, the page) goes on and does not count: streams of news have no end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._begun = False
        self._at_work = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """Refuse new work from now on."""
        self._begun = True

    async def finished(self) -> None:
        """Wait until no request is at work."""
        await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        if self._begun:
            await _read(receive)  # closing with a body unread would take the answer away again
            response = JSONResponse(
                error_body("the server is shutting down: try again later", 503, "shutting_down"),
                503,
                {"Retry-After": str(RETRY_AFTER_S), "Connection": "close"},
            )
            await response(scope, receive, send)
            return
        self._at_work += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._at_work -= 1
            if not self._at_work:
                self._idle.set()


async def _read(receive: Receive) -> None:
    size = 0
    while size <= _MAX_UNREAD_BYTES:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            return
