"""Logs: lines for people or JSON, written by a thread so that a full disk never holds up the server."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener

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


class LogWriter(QueueHandler):
    """Formats records where they are logged; a thread writes the lines to a file descriptor."""

    def __init__(self, fd: int, max_waiting: int = MAX_WAITING) -> None:
        lines: queue.Queue[logging.LogRecord] = queue.Queue(max_waiting)
        super().__init__(lines)
        self.dropped = 0
        """Lines that were not written."""
        listener = QueueListener(lines, _Descriptor(fd, self.handleError))
        listener.start()

        def finish() -> None:
            lines.join()
            listener.stop()

        self._finishing = threading.Thread(target=finish, name="log-end", daemon=True)

    def handleError(self, record: logging.LogRecord) -> None:
        self.dropped += 1  # a message that does not fit its arguments, a full queue, a full disk

    def close(self) -> None:
        """Write what waits, for `FLUSH_S` at most. Closing twice does nothing."""
        if self._finishing.ident is None:
            self._finishing.start()
            self._finishing.join(FLUSH_S)
        super().close()


class _Descriptor(logging.Handler):
    """Writes whole lines, unbuffered: nothing is kept of a line that failed."""

    def __init__(self, fd: int, failed: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._fd, self._failed = fd, failed

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().encode("utf-8", "backslashreplace") + b"\n"
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError:
            self._failed(record)


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
