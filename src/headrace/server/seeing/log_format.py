"""How a line of log reads: for people, or as JSON for programs. Standard library only: the engine process logs, too."""

from __future__ import annotations

import json
import logging
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
