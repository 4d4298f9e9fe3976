"""How a server process ends: signals, and a deadline. Standard library only: the command line loads it first."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held() -> Iterator[None]:
    """Block the signals until `Ending.listen`, or the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Ending:
    """The state of signals: the first ends the server after a drain, the second at once, with `exit_code`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.urged = asyncio.Event()
        self.exit_code = 0

    def listen(self) -> None:
        """Handle signals from now on, including those that `held` blocked. Call it on the main thread's loop."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._take, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _take(self, number: int) -> None:
        if self.asked.is_set():
            self.exit_code = 128 + number
            self.urged.set()
        self.asked.set()


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
