"""Work as a count, which is the same on every machine however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of Python the call executes in this thread, those of what it calls included."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def growth(call: Callable[[int], object], size: int = 500) -> float:
    """How many times as many lines run for four times the size: about 4 where work grows with it, 16 if quadratic."""
    few, many = (lines_run(lambda size=size: call(size)) for size in (size, 4 * size))  # type: ignore[misc]
    return many / few
