"""Signal handlers held back while a step must not be torn apart."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (
    signal.SIGINT, signal.SIGALRM, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
"""Those whose handlers raise: Ctrl-C, and the time limits of notebooks and test runners."""

Handler = Callable[[int, FrameType | None], Any]


class Interrupts:
    """Inside the block, Python's handlers of SIGNALS do not run; those whose signal came run at its end, or in `check`.

    A handler that raises, as Ctrl-C's does, may do so between any two bytecodes of the main thread. In other threads
    there is nothing to hold back. A block inside another one changes nothing.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._came: dict[int, FrameType | None] = {}
        self._depth = 0  # of blocks of the main thread

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            self._depth += 1
            if self._depth == 1:
                self._install()
        except BaseException:  # of a handler that was not replaced yet
            self._depth = 0
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if self._depth > 1:
            self._depth -= 1
            return
        self._depth = 0  # first: a handler that runs from here on may raise out of this method
        try:
            for number, handler in self._handlers.items():
                if signal.getsignal(number) == self._note:
                    signal.signal(number, handler)
        finally:
            self._run_handlers()

    def check(self) -> None:
        """Run the handlers of signals that came, at a line where they may raise."""
        if self._came and threading.current_thread() is threading.main_thread():
            self._run_handlers()

    def _install(self) -> None:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler != self._note:
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._came[number] = frame
        else:  # still installed after an exception out of one of the methods above
            self._handlers[number](number, frame)

    def _run_handlers(self) -> None:
        if self._came:
            number, frame = self._came.popitem()
            try:
                self._handlers[number](number, frame)
            finally:
                self._run_handlers()
