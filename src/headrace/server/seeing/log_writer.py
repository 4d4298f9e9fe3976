"""Writes logs without ever holding up who logs: a full disk or a stuck terminal costs lines, nothing else."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.server.seeing.log_format import formatter

MAX_WAITING = 10_000
"""Lines that may wait to be written; the next ones are dropped."""

_STANDARD_ERROR = 2

FLUSH_S = 1.0
"""Time that lines get to be written at the end."""


class LogWriter(logging.Handler):
    """A handler whose lines are written to a file descriptor by a thread."""

    def __init__(self, fd: int, max_waiting: int = MAX_WAITING) -> None:
        super().__init__()
        self.dropped = 0
        """Lines that were not written."""
        self._fd = fd
        self._lines: queue.Queue[bytes | None] = queue.Queue(max_waiting)
        self._thread = threading.Thread(target=self._write_all, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
            self._lines.put_nowait(line)
        except Exception:  # a message that does not fit its arguments, a full queue
            self.dropped += 1

    def close(self) -> None:
        """Write what waits, for `FLUSH_S` at most. Closing twice does nothing."""
        if self._thread.is_alive():
            try:
                self._lines.put(None, timeout=FLUSH_S)
            except queue.Full:
                return
            self._thread.join(FLUSH_S)
        super().close()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:
                self.dropped += 1


@contextmanager
def logs(level: str, kind: str) -> Iterator[LogWriter]:
    """All logs of this process go to its standard error, from `level` on and in the format `kind`."""
    writer = LogWriter(_STANDARD_ERROR)
    writer.setFormatter(formatter(kind))
    root = logging.getLogger()
    before = root.level
    root.addHandler(writer)
    root.setLevel(level.upper())
    try:
        yield writer
    finally:
        root.removeHandler(writer)
        root.setLevel(before)
        writer.close()
