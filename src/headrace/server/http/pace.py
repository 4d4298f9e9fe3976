"""When a request's work is done: a few requests of a burst at a time, none for callers who left, none after shutdown.

The event loop runs everything that is ready before it polls sockets and timers again. Hundreds of requests that arrive
in the same moment, as from clients that were refused together, would make one long turn that delays every stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.http.errors import error_body

REQUESTS_A_TURN = 8
"""About ten milliseconds of work."""

RETRY_AFTER_S = 5
"""After it, a service manager or a load balancer may have found another server."""

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_MAX_UNREAD_BYTES = 2**20

Result = TypeVar("Result")


class CallerLeft(Exception):
    """The connection was closed before the answer was complete."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`. When the caller disconnects, cancels it and raises CallerLeft.

    The request's body must have been read.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise CallerLeft
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Slices:
    """The work of one request in slices of `size`, between which the event loop serves others."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size

    async def add(self, work: int) -> None:
        """Count work that was done; a full slice ends the turn."""
        self._left -= work
        if self._left <= 0:
            self._left = self._size
            await asyncio.sleep(0)


class Pace:
    """ASGI middleware: starts at most `a_turn` requests in a turn of the event loop, in order of arrival."""

    def __init__(self, app: ASGIApp, a_turn: int = REQUESTS_A_TURN) -> None:
        self._app = app
        self._a_turn = a_turn
        self._begun = 0  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False  # `_turn` will be called

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            loop = asyncio.get_running_loop()
            if not self._turning:
                self._turning = True
                loop.call_soon(self._turn)
            if self._begun >= self._a_turn or self._waiting:
                turn: asyncio.Future[None] = loop.create_future()
                self._waiting.append(turn)
                await turn
            else:
                self._begun += 1
        await self._app(scope, receive, send)

    def _turn(self) -> None:
        """A new turn: start the requests that have waited longest."""
        self._begun = 0
        while self._waiting and self._begun < self._a_turn:
            turn = self._waiting.popleft()
            if not turn.done():  # the request was not cancelled
                turn.set_result(None)
                self._begun += 1
        self._turning = bool(self._waiting)
        if self._turning:
            asyncio.get_running_loop().call_soon(self._turn)


class Drain:
    """ASGI middleware: counts the requests in progress, and answers new ones with 503 after `begin`.

    Safe methods (health, metrics, the page) are served and not counted, as live feeds do not end by themselves.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._begun = False
        self._in_progress = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """Refuse new work from now on."""
        self._begun = True

    async def finished(self) -> None:
        """Wait until no request is in progress."""
        await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        if self._begun:
            await _read(receive)  # closing a connection with an unread body resets it, and the answer is lost
            body = error_body("the server is shutting down: try again later", 503, "shutting_down")
            headers = {"Retry-After": str(RETRY_AFTER_S), "Connection": "close"}
            await JSONResponse(body, 503, headers)(scope, receive, send)
            return
        self._in_progress += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_progress -= 1
            if not self._in_progress:
                self._idle.set()


async def _read(receive: Receive) -> None:
    size = 0
    while size <= _MAX_UNREAD_BYTES:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            return
