"""Repeats a measurement; an interrupt keeps the runs that were done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Repeats(Generic[T]):
    """`runs` holds the results of `repeats` runs, after one that warms up; `before` is called before each.

    An interrupt ends them early. `reraise` raises it again once the caller has used the results; without any
    result it is raised immediately.
    """

    def __init__(self, run: Callable[[], T], repeats: int, before: Callable[[], None]) -> None:
        self.runs: list[T] = []
        self._interrupted = False
        try:
            for repeat in range(repeats + 1):
                before()
                result = run()
                if repeat:
                    self.runs.append(result)
        except KeyboardInterrupt:
            if not self.runs:
                raise
            self._interrupted = True

    def reraise(self) -> None:
        """Raises KeyboardInterrupt if the runs were interrupted."""
        if self._interrupted:
            raise KeyboardInterrupt
