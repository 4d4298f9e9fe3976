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
from headrace.server.batch.input import Entry

REFUSALS = frozenset({429, 503})
"""Statuses that mean "later": the queue is full, or the engine is being started again. They answer nothing."""

Mark = str | int
"""What tells whether an entry has been answered: its custom_id, or the number of its line where it has none."""


def mark_of(entry: Entry) -> Mark:
    return entry.line if entry.custom_id is None else entry.custom_id


class BatchOutput:
    """Appends whole lines to a file that no other run may write meanwhile.

    `done` holds the marks that are in it from earlier runs, `failed` counts those whose answer is not a 200. A last
    line that was cut off by a kill is taken out, and so are refusals, which earlier versions wrote.
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
            self.done: set[Mark] = set()
            self.failed = 0
            if self._read():
                self._take_refusals_out()
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
        if not os.path.samestat(os.fstat(self._fd), os.stat(self._path)):  # replaced while it was opened
            raise ConfigError(f"another run is writing {self._path}")

    def _read(self) -> bool:
        """Take in what earlier runs have written; returns whether there are refusals among it."""
        refusals = False
        end = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break  # cut off: the entry will be run again
                mark, status = self._entry(line, number)
                if status in REFUSALS:
                    refusals = True
                else:
                    self.done.add(mark)
                    self.failed += status != 200
                end += len(line)
        os.ftruncate(self._fd, end)
        os.lseek(self._fd, 0, os.SEEK_END)
        return refusals

    def _take_refusals_out(self) -> None:
        """Put a file without them in the place of this one: at no time is there less than all answers."""
        other = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            fd = os.open(other, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                os.lseek(self._fd, 0, os.SEEK_SET)
                with os.fdopen(os.dup(self._fd), "rb") as old, os.fdopen(os.dup(fd), "wb") as new:
                    for number, line in enumerate(old, start=1):
                        if self._entry(line, number)[1] not in REFUSALS:
                            new.write(line)
                os.fsync(fd)
                os.replace(other, self._path)
            except BaseException:
                os.close(fd)
                other.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror or error}") from error
        os.close(self._fd)
        self._fd = fd

    def _entry(self, line: bytes, number: int) -> tuple[Mark, int | None]:
        """Mark and status of a line; None where it is an error without an answer."""
        try:
            answer = json.loads(line)
            mark, response = answer["custom_id"], answer.get("response")
            mark = answer["error"]["line"] if mark is None else mark
            status = response["status_code"] if response is not None else None
            if isinstance(mark, (str, int)) and isinstance(status, (int, type(None))):
                return mark, status
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass
        raise ConfigError(
            f"line {number} of {self._path} is no answer of a batch: name another file, or start anew with --overwrite"
        )


def _name() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
