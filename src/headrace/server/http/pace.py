"""When work is done: a few requests of a burst at a time, and none for callers who left.

The event loop runs all that is ready before it looks at sockets and clocks again. Hundreds of requests that come in the
same moment, as clients do that were refused or answered together, would be one long turn, in which no stream goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

Result = TypeVar("Result")


class CallerLeft(Exception):
    """The connection was closed; nobody is there to read an answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the caller disconnects. Raises CallerLeft then.

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


REQUESTS_A_TURN = 8
"""About ten milliseconds of work."""


class Slices:
    """The work of one request, cut into slices of a size, so that others are served between them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size

    async def add(self, work: int) -> None:
        """So much was done; where a slice is full, the event loop has a turn for others."""
        self._left -= work
        if self._left <= 0:
            self._left = self._size
            await asyncio.sleep(0)


class Pace:
    """ASGI middleware, outside of what costs time: lets so many requests begin in each turn of the loop, in order."""

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
        """A new turn: those who have waited longest begin."""
        self._begun = 0
        while self._waiting and self._begun < self._a_turn:
            turn = self._waiting.popleft()
            if not turn.done():  # its caller is still there
                turn.set_result(None)
                self._begun += 1
        self._turning = bool(self._waiting)
        if self._turning:
            asyncio.get_running_loop().call_soon(self._turn)
