"""Waiting for something that happens elsewhere. Tests assert what happened, and never how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG_S = 60.0
"""A busy machine takes many times longer than a quiet one: the limit only ends a test that would wait for ever."""


def until(condition: Callable[[], bool], seconds: float = LONG_S) -> None:
    """Poll until the condition holds; AssertionError after `seconds`, shorter where a planted fault never ends."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so within {seconds:g} s"
        time.sleep(0.01)
