"""`headrace` and `python -m headrace`: the entry of the command line."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130


def interrupted() -> int:
    """Say so in one line; returns the exit status. Imports nothing, as Ctrl-C may come during the first import."""
    line = "\n" if sys.stderr.isatty() else ""  # the terminal shows ^C on the current line
    try:  # noqa: SIM105, contextlib is an import
        print(f"{line}headrace: interrupted", file=sys.stderr, flush=True)
    except OSError:  # a full disk
        pass
    return INTERRUPTED


def open_missing_streams() -> None:
    """Open /dev/null for each standard stream that the caller closed.

    Otherwise the next file or socket would become standard output, and Python's stream would be None.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


open_missing_streams()
try:
    import signal

    from headrace.cli import main as run
except KeyboardInterrupt:
    sys.exit(interrupted())


def main() -> int:
    """Run the command line of this process; returns its exit status."""
    try:
        return run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the end
        return interrupted()


if __name__ == "__main__":
    sys.exit(main())
