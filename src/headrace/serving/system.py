"""What is asked of the operating system: clocks as arguments, and an end together with the parent process."""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since an arbitrary start, never going back."""

Sleep = Callable[[float], object]
"""Waits for so many seconds, or shorter where something woke it."""

MONOTONIC: Clock = time.monotonic


_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. Does nothing but on Linux.

    A parent that has ended before this call is not noticed: watch its pipe or socket as well.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
