"""The files of a batch, in OpenAI's format: requests to read, one a line, and answers to append as they come."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import ConfigError

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses")
MAX_LINE_BYTES = 32 * 2**20
MAX_CUSTOM_ID_CHARS = 1024
MAX_LINES = 10_000_000

REFUSALS = frozenset({429, 503})
"""Statuses that mean "later": the queue is full, or the engine is being restarted."""

Mark = str | int
"""Identifies an entry in the output: its custom_id, or its line number if it has none."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Line `line`, which begins at byte `offset`. `custom_id` is None if it is missing or not unique; `fault` says why
    the entry cannot be sent."""

    line: int
    offset: int
    custom_id: str | None
    fault: str | None = None

    @property
    def mark(self) -> Mark:
        return self.line if self.custom_id is None else self.custom_id


class BatchInput:
    """Every line of a file as an Entry; empty lines are skipped. Bodies are read from disk by `request`.

    Raises ConfigError if the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            kind = path.stat().st_mode
            if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
                raise ConfigError(
                    f"{path} is not a regular file: write the requests to one, which is read twice"
                )
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
        try:
            self.entries = list(self._scan())
        except BaseException:
            self._file.close()
            raise

    def request(self, entry: Entry) -> tuple[str, bytes]:
        """Path and body of an entry without a fault."""
        self._file.seek(entry.offset)
        request = json.loads(self._file.readline())
        body = json.dumps(request["body"], ensure_ascii=False)
        return request["url"], body.encode("utf-8", "surrogatepass")

    def close(self) -> None:
        self._file.close()

    def _scan(self) -> Iterator[Entry]:
        first: dict[str, int] = {}  # custom id -> its line
        number = 0
        while True:
            offset = self._file.tell()
            line = self._file.readline(MAX_LINE_BYTES + 1)
            if not line:
                return
            number += 1
            if number > MAX_LINES:
                raise ConfigError(f"the batch has more than {MAX_LINES} lines: split it")
            if len(line) > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = self._file.readline(MAX_LINE_BYTES)
                yield Entry(number, offset, None, f"the line is longer than {MAX_LINE_BYTES} bytes")
            elif line.strip():
                entry = _entry(number, offset, line)
                if entry.custom_id is not None:
                    other = first.setdefault(entry.custom_id, number)
                    if other != number:
                        fault = f"custom_id {entry.custom_id[:200]!r} is that of line {other}, too"
                        entry = Entry(number, offset, None, fault)
                yield entry


def _entry(number: int, offset: int, line: bytes) -> Entry:
    try:
        request: Any = json.loads(line)
    except (ValueError, RecursionError):
        return Entry(number, offset, None, "the line is not JSON")
    if not isinstance(request, dict):
        return Entry(number, offset, None, "the line is not a JSON object")
    custom_id = request.get("custom_id")
    if (
        not isinstance(custom_id, str)
        or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS
        or not _is_text(custom_id)
    ):
        return Entry(number, offset, None, f"custom_id must be text of 1 to {MAX_CUSTOM_ID_CHARS} characters")
    return Entry(number, offset, custom_id, _fault(request))


def _fault(request: dict[str, Any]) -> str | None:
    body = request.get("body")
    if request.get("method") != "POST":
        return 'method must be "POST"'
    if request.get("url") not in PATHS:
        return f"url must be one of {', '.join(PATHS)}"
    if not isinstance(body, dict):
        return "body must be an object"
    return "a batch has no streams: leave stream out" if body.get("stream") else None


def _is_text(text: str) -> bool:
    """It has no half of a surrogate pair, which could not be written to the output."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class BatchOutput:
    """Appends lines to a file that only this run may write, so that a killed run can be resumed.

    `done` has the marks of earlier runs' answers, `failed` counts those whose status is not 200. A last line that a
    kill cut off is removed, and so are refusals, which earlier versions wrote.
    Raises ConfigError if the file cannot be written, another run writes it, or it contains other lines than answers.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise ConfigError(f"{path} is not a regular file: a later run must be able to read it")
            self._lock()
            if overwrite:
                os.ftruncate(self._fd, 0)
            self.done: set[Mark] = set()
            self.failed = 0
            if self._read():
                self._remove_refusals()
        except BaseException:
            os.close(self._fd)
            raise

    def answer(self, entry: Entry, status: int, request_id: str, body: Any) -> None:
        """Write the answer of a route."""
        self._write(entry, {"status_code": status, "request_id": request_id, "body": body}, None)

    def fault(self, entry: Entry, code: str, message: str) -> None:
        """Write why an entry has no answer."""
        self._write(entry, None, {"code": code, "message": message, "line": entry.line})

    def check(self, entries: Iterable[Entry]) -> None:
        """Raises ConfigError if earlier answers belong to other entries than these."""
        foreign = self.done - {entry.mark for entry in entries}
        if foreign:
            raise ConfigError(
                f"{self._path} holds answers to other requests, such as {next(iter(foreign))!r:.80}: name another "
                "file, or start over with --overwrite"
            )

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, entry: Entry, response: dict[str, Any] | None, error: dict[str, Any] | None) -> None:
        name = f"batch_req_{uuid.uuid4().hex}"
        line = {"id": name, "custom_id": entry.custom_id, "response": response, "error": error}
        data = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as failed:
            raise self._unwritable(failed) from failed

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f"{self._path} cannot be written: {error.strerror or error}")

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another run is writing {self._path}") from error
        if not os.path.samestat(os.fstat(self._fd), os.stat(self._path)):  # replaced while it was opened
            raise ConfigError(f"another run is writing {self._path}")

    def _read(self) -> bool:
        """Read what earlier runs have written. Returns whether it contains refusals."""
        refusals = False
        end = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break  # cut off: the entry will be run again
                mark, status = self._parsed(line, number)
                if status in REFUSALS:
                    refusals = True
                else:
                    self.done.add(mark)
                    self.failed += status != 200
                end += len(line)
        os.ftruncate(self._fd, end)
        os.lseek(self._fd, 0, os.SEEK_END)
        return refusals

    def _remove_refusals(self) -> None:
        """Replace the file by one without them, atomically, so that a kill loses no answer."""
        other = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            fd = os.open(other, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                os.lseek(self._fd, 0, os.SEEK_SET)
                with os.fdopen(os.dup(self._fd), "rb") as old, os.fdopen(os.dup(fd), "wb") as new:
                    for number, line in enumerate(old, start=1):
                        if self._parsed(line, number)[1] not in REFUSALS:
                            new.write(line)
                os.fsync(fd)
                os.replace(other, self._path)
            except BaseException:
                os.close(fd)
                other.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._unwritable(error) from error
        os.close(self._fd)
        self._fd = fd

    def _parsed(self, line: bytes, number: int) -> tuple[Mark, int | None]:
        """Mark and status of a line; the status is None for an error without an answer."""
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
            f"line {number} of {self._path} is not an answer of a batch: name another file, or start over with "
            "--overwrite"
        )
