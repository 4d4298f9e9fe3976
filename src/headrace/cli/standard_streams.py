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
    # Python has None for them then, which few libraries expect.
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def say(text: str) -> None:
    """Print a line, or nothing from now on if that fails."""
    try:
        print(text, flush=True)
    except OSError:
        # What could not be written is kept, and would fail again at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
