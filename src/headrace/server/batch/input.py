"""The input of a batch: OpenAI's format, one request a line, looked through once before anything is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import ConfigError

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses")
MAX_LINE_BYTES = 32 * 2**20
MAX_CUSTOM_ID_CHARS = 1024
MAX_LINES = 10_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """Line `line`, which begins at byte `offset`. `custom_id` is None where it has none of its own; `fault` says why it
    cannot be sent."""

    line: int
    offset: int
    custom_id: str | None
    fault: str | None = None


class BatchInput:
    """Every line of a file as an Entry; empty lines are skipped. Bodies stay on disk until `body`.

    Raises ConfigError where the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
        try:
            self.entries = list(self._look())
        except BaseException:
            self._file.close()
            raise

    def request(self, entry: Entry) -> tuple[str, bytes]:
        """Path and body of an entry without a fault."""
        self._file.seek(entry.offset)
        request = json.loads(self._file.readline())
        return request["url"], json.dumps(request["body"], ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )

    def close(self) -> None:
        self._file.close()

    def _look(self) -> Iterator[Entry]:
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
                self._skip_line(line)
                yield Entry(number, offset, None, f"the line is longer than {MAX_LINE_BYTES} bytes")
            elif line.strip():
                entry = _entry(number, offset, line)
                if entry.custom_id is not None:
                    other = first.setdefault(entry.custom_id, number)
                    if other != number:
                        fault = f"custom_id {entry.custom_id[:200]!r} is that of line {other}, too"
                        entry = Entry(number, offset, None, fault)
                yield entry

    def _skip_line(self, line: bytes) -> None:
        while line and not line.endswith(b"\n"):
            line = self._file.readline(MAX_LINE_BYTES)


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
    if request.get("method") != "POST":
        return 'method must be "POST"'
    if request.get("url") not in PATHS:
        return f"url must be one of {', '.join(PATHS)}"
    body = request.get("body")
    if not isinstance(body, dict):
        return "body must be an object"
    if body.get("stream"):
        return "a batch has no streams: leave stream out"
    return None


def _is_text(text: str) -> bool:
    """No half of a surrogate pair, which could not be written again."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
