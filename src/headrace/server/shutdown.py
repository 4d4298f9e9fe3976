"""How a server ends: signals, requests that are finished first, and a deadline for the process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.http.errors import error_body

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held() -> Iterator[None]:
    """Keep the signals waiting until `Ending.listen`, or the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Ending:
    """What the signals have asked for. `exit_code` is for an end that was not waited for."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.urged = asyncio.Event()
        self.exit_code = 0

    def listen(self) -> None:
        """Handle signals from now on, those that `held` kept included. To be called on the main thread's loop."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._take, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _take(self, number: int) -> None:
        if self.asked.is_set():
            self.exit_code = 128 + number
            self.urged.set()
        self.asked.set()


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


_log = logging.getLogger(__name__)


class LastResort:
    """Ends this process at a deadline, unless `close` comes first. The engine below it ends with it."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def within(self, seconds: float, exit_code: int) -> None:
        """Set the deadline; a later call replaces it."""
        self.close()
        self._timer = threading.Timer(seconds, _end, (exit_code,))
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _end(exit_code: int) -> None:
    _log.warning("the server did not end in time: it ends now")
    os._exit(exit_code)
