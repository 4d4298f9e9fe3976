"""One thread at a time changes an engine, and no signal handler runs in the middle of a step."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (
    signal.SIGINT, signal.SIGALRM, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
"""Those whose handlers raise: Ctrl-C, and the time limits of notebooks and test runners."""

Handler = Callable[[int, FrameType | None], Any]


class Interrupts:
    """Defers Python's handlers of SIGNALS to the end of the block, or to `check`.

    A handler that raises, as Ctrl-C's does, may do so between any two bytecodes of the main thread. Other threads run
    no handlers. Blocks may be nested.
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
        """Run the handlers of signals that arrived, at a line where they may raise."""
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


class Turn:
    """A fair lock: threads get it in order of arrival. Signal handlers are deferred inside.

    With `threading.Lock` a thread that steps in a loop would take the lock again before another one wakes up.
    """

    def __init__(self, interrupts: Interrupts | None = None) -> None:
        self._interrupts = interrupts or Interrupts()
        self._guard = threading.Lock()
        self._taken = False
        self._owner: int | None = None  # identifier of the thread inside
        self._queue: deque[threading.Lock] = deque()  # of waiting threads, each released when its turn comes

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner == me:
            raise RuntimeError("a finalizer called the model in the middle of a step of the same thread")
        self._interrupts.__enter__()
        mine = None
        with self._guard:
            if self._taken:
                mine = threading.Lock()
                mine.acquire()
                self._queue.append(mine)
            self._taken = True
        if mine is not None:
            mine.acquire()
        self._owner = me

    def __exit__(self, *_: object) -> None:
        self._owner = None
        with self._guard:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._taken = False
        self._interrupts.__exit__()

    def after_fork(self) -> bool:
        """In a child process: forget the parent's other threads. True if one of them was inside."""
        self._guard = threading.Lock()
        self._queue.clear()
        return self._taken and self._owner != threading.get_ident()
