"""Time as an argument: whoever needs it is given a clock, so that tests can hold it still."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since an arbitrary start, never going back."""

Sleep = Callable[[float], object]
"""Waits for so many seconds, or shorter where something woke it."""

MONOTONIC: Clock = time.monotonic
