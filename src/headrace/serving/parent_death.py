"""Ends a process with the one that started it, even while it is stopped and runs no code of its own."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. Does nothing but on Linux.

    A parent that has ended before this call is not noticed: watch its pipe or socket as well.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
