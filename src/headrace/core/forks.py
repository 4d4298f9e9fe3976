"""What a child of `os.fork` must create again: only the thread that called fork exists there.

A lock that another thread held stays locked there for ever, and a pool waits for threads that do not exist.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """Something with threads or locks of its own."""

    def after_fork(self) -> None:
        """Called in the child, before `os.fork` returns there."""
        ...


_things: WeakSet[Forkable] = WeakSet()


def watch_forks(thing: Forkable) -> None:
    """Call `thing.after_fork` in every child process, as long as the thing lives."""
    _things.add(thing)


def _after_fork() -> None:
    for thing in list(_things):
        thing.after_fork()


os.register_at_fork(after_in_child=_after_fork)
