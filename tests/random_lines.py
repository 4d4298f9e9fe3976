"""Calls a function at a random line of a package's code, as a finalizer or a signal handler would."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType
from typing import Any

PACKAGE = "/headrace/"


class RandomLines:
    """`act` is called at `self.at`, counted in lines that this thread runs inside functions whose path holds `path`."""

    def __init__(self, act: Callable[[], object], path: str = PACKAGE) -> None:
        self._act = act
        self._path = path
        self.lines = 0
        self.at: int | None = None
        self.where: list[str] = []
        """The function of each line where it was called, and those that had called that one, innermost first."""

    def draw(self, rng: Random, lines: int) -> None:
        """Count from 0 again, and act at one of the next `lines`."""
        self.lines, self.at = 0, rng.randrange(lines)

    @contextmanager
    def watch(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if self._path in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            if self.lines == self.at:
                self.where.append(" ".join(_functions(frame)))
                self._act()
            self.lines += 1
        return self._line


def _functions(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back
