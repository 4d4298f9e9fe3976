"""Signals that end a server: none is lost while it starts, the first lets it finish, the second does not wait."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

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
