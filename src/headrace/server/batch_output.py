"""The output of a batch: a line for each request as it ends, appended so that a run which was killed can go on."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.server.batch_input import Entry

Mark = str | int
"""What tells whether an entry has been answered: its custom_id, or the number of its line where it has none."""


def mark_of(entry: Entry) -> Mark:
    return entry.line if entry.custom_id is None else entry.custom_id


class BatchOutput:
    """Appends whole lines to a file that no other run may write meanwhile.

    `done` holds the marks that are in it from earlier runs. A last line that was cut off by a kill is taken out.
    Raises ConfigError where the file cannot be written, is another run's, or holds something else than answers.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise ConfigError(f"{path} is no regular file: what a run has written must be found again")
            self._lock()
            if overwrite:
                os.ftruncate(self._fd, 0)
            self.done = self._read()
        except BaseException:
            os.close(self._fd)
            raise

    def answer(self, entry: Entry, status: int, request_id: str, body: Any) -> None:
        """Write what a route has answered."""
        response = {"status_code": status, "request_id": request_id, "body": body}
        self._write({"id": _name(), "custom_id": entry.custom_id, "response": response, "error": None})

    def fault(self, entry: Entry, code: str, message: str) -> None:
        """Write why an entry got no answer."""
        error = {"code": code, "message": message, "line": entry.line}
        self._write({"id": _name(), "custom_id": entry.custom_id, "response": None, "error": error})

    def check(self, entries: Iterable[Entry]) -> None:
        """Raises ConfigError where earlier answers belong to other entries than these."""
        foreign = self.done - {mark_of(entry) for entry in entries}
        if foreign:
            raise ConfigError(
                f"{self._path} holds answers to other requests, such as {next(iter(foreign))!r:.80}: name another "
                "file, or start anew with --overwrite"
            )

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror or error}") from error

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another run is writing {self._path}") from error

    def _read(self) -> set[Mark]:
        done: set[Mark] = set()
        end = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break  # cut off: the entry will be run again
                done.add(self._mark(line, number))
                end += len(line)
        os.ftruncate(self._fd, end)
        os.lseek(self._fd, 0, os.SEEK_END)
        return done

    def _mark(self, line: bytes, number: int) -> Mark:
        try:
            answer = json.loads(line)
            mark = answer["custom_id"]
            mark = answer["error"]["line"] if mark is None else mark
            if isinstance(mark, (str, int)):
                return mark
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise ConfigError(
            f"line {number} of {self._path} is no answer of a batch: name another file, or start anew with --overwrite"
        )


def _name() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
