"""Logs: lines for people or JSON, written by a thread so that a full disk never holds up the server."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)

FIELDS = "fields"
"""The attribute of a log record that holds more fields of its line, as a dictionary of JSON's types."""


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, and the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)  # in ASCII: whatever a name holds, it is one line


def formatter(kind: str) -> logging.Formatter:
    """`kind` is one of FORMATS."""
    return JsonFormatter() if kind == JSON else logging.Formatter("%(levelname)s: %(message)s")


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
