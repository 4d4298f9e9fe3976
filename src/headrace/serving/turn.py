"""Who may change an engine that several threads use."""

from __future__ import annotations

import threading
from collections import deque

from headrace.serving.interrupts import Interrupts


class Turn:
    """A lock that goes to threads in the order in which they came, with signal handlers held back inside.

    With `threading.Lock` a thread that steps in a loop would take the lock again before any other one wakes up.
    """

    def __init__(self, interrupts: Interrupts | None = None) -> None:
        self._interrupts = interrupts or Interrupts()
        self._guard = threading.Lock()
        self._taken = False
        self._owner: int | None = None  # identifier of the thread inside
        self._queue: deque[threading.Lock] = (
            deque()
        )  # one for each thread that waits, released when its turn comes

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
        """In a child process: forget the threads that are not there. True where one of them was inside."""
        self._guard = threading.Lock()
        self._queue.clear()
        return self._taken and self._owner != threading.get_ident()
