"""Standard output and error of a service, which goes on when nobody reads them any more or the disk is full."""

from __future__ import annotations

import os
import sys


def complete() -> None:
    """Open what the caller has closed: the next socket must not become standard output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def say(text: str) -> None:
    """Print a line, or nothing from now on if that fails."""
    try:
        print(text, flush=True)
    except OSError:
        # What could not be written is kept, and would fail again at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
