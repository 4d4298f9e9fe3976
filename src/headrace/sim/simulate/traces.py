"""Requests from trace files, in the formats of two public collections:

- Azure's (Patel et al. 2024, AzurePublicDataset): CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens;
- Mooncake's (Qin et al. 2024): a JSON object a line with timestamp in milliseconds, input_length, output_length and
  hash_ids, one for each piece of 512 tokens of the prompt. Equal ids mean equal pieces, so that prompts share prefixes.

Files are read line by line, as far as the simulation goes, so that they may be larger than memory.
"""

from __future__ import annotations

import csv
import heapq
import itertools
import json
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import ConfigError
from headrace.sim.simulate.requests import Ask, Prompt, Prompts
from headrace.sim.workload.sessions import MAX_LEN

PIECE = 512
"""Tokens that one of Mooncake's hash_ids stands for."""
MAX_LINE = 1 << 20
MAX_HASH = 2**63
MAX_S = 1e9
"""Between the first request and the last; a simulated clock of later times is too coarse for steps."""
UNORDERED = 1024
"""Lines among which requests are put in the order of their times."""
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE = ("timestamp", "input_length", "output_length")


class _OutOfRange(ValueError):
    """A length that is a number, but not one of a request; says so in words that follow the line's number."""


class Entry(NamedTuple):
    """A line: its time in seconds on the file's clock, and lengths in tokens."""

    time_s: float
    line: int
    prompt_tokens: int
    output_tokens: int
    pieces: tuple[int, ...] = ()


@dataclass(slots=True)
class TraceAsks:
    """The requests of a file, at the times that it says, the first one at 0; satisfies `requests.Asks`.

    `speed` 2 sends them twice as fast. At most `count` of them, of the first `duration_s` seconds. A request without
    output tokens gets one; one without a prompt is left out. Raises ConfigError for a file of neither format or
    without a request, from the constructor, and for a damaged line when that is reached.
    """

    path: Path
    vocab_size: int
    speed: float = 1.0
    count: int | None = None
    duration_s: float = math.inf
    _prompts: Prompts = field(init=False)

    def __post_init__(self) -> None:
        self._prompts = Prompts(self.vocab_size)
        if next(_entries(self.path), None) is None:
            raise ConfigError(f"the trace {self.path} has no request with a prompt")

    def first(self) -> Iterator[Ask]:
        start: float | None = None
        for number, entry in enumerate(itertools.islice(_ordered(self.path), self.count)):
            start = entry.time_s if start is None else start
            at = (entry.time_s - start) / self.speed
            if at >= self.duration_s:
                return
            if at > MAX_S:
                raise _damaged(self.path, entry.line, f"is more than {MAX_S:,.0f} s after the first request")
            yield Ask(number, at, self._prompt(number, entry), max(1, entry.output_tokens))

    def after(self, ask: Ask, now: float) -> Ask | None:
        return None

    def _prompt(self, number: int, entry: Entry) -> Prompt:
        count = entry.prompt_tokens
        if not entry.pieces:
            return self._prompts.unique(number, count)
        parts = [self._prompts.unique(piece, PIECE) for piece in entry.pieces]
        prompt = tuple(itertools.chain.from_iterable(parts))[:count]
        return (*prompt, *self._prompts.unique(number, count - len(prompt)))


def _ordered(path: Path) -> Iterator[Entry]:
    """Entries in the order of their times. Raises ConfigError where that is far from the order of the lines."""
    heap: list[Entry] = []
    last = -math.inf
    for entry in itertools.chain(_entries(path), itertools.repeat(None, UNORDERED)):
        if entry is not None:
            if entry.time_s < last:
                raise _damaged(
                    path, entry.line, "is earlier than many lines before it: sort the file by time"
                )
            heapq.heappush(heap, entry)
            if len(heap) <= UNORDERED:
                continue
        if not heap:
            return
        found = heapq.heappop(heap)
        last = found.time_s
        yield found


def _entries(path: Path) -> Iterator[Entry]:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            if not stat.S_ISREG(os.fstat(lines.fileno()).st_mode):
                raise ConfigError(
                    f"the trace {path} is not a regular file: write it to one, which is read twice"
                )
            head = _line(path, lines, 1)
            if head.lstrip("\ufeff").startswith("{"):
                yield from _mooncake(path, itertools.chain([head], _lines(path, lines, 2)))
            else:
                yield from _azure(path, head.lstrip("\ufeff"), _lines(path, lines, 2))
    except OSError as error:
        raise ConfigError(f"the trace {path} cannot be read: {error.strerror}") from None


def _line(path: Path, lines: Any, number: int) -> str:
    line: str = lines.readline(MAX_LINE + 1)
    if len(line) > MAX_LINE:
        raise _damaged(path, number, f"is longer than {MAX_LINE} characters")
    return line


def _lines(path: Path, lines: Any, first: int) -> Iterator[str]:
    for number in itertools.count(first):
        line = _line(path, lines, number)
        if not line:
            return
        yield line


def _azure(path: Path, head: str, lines: Iterator[str]) -> Iterator[Entry]:
    names = _cells(path, 1, head)
    if not set(AZURE) <= set(names):
        raise ConfigError(
            f"the trace {path} is in no known format: the first line must name the columns {', '.join(AZURE)}, or be a "
            f"JSON object with {', '.join(MOONCAKE)}"
        )
    at, prompt, output = (names.index(name) for name in AZURE)
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        row = _cells(path, number, line)
        try:
            time = datetime.fromisoformat(row[at].strip())
            if time.tzinfo is None:  # not this machine's zone, whose clock may jump
                time = time.replace(tzinfo=UTC)
            entry = Entry(time.timestamp(), number, _length(row[prompt]), _length(row[output]))
        except _OutOfRange as error:
            raise _damaged(path, number, str(error)) from None
        except (ValueError, IndexError, OverflowError):
            raise _damaged(path, number, "holds no time and two token counts") from None
        if entry.prompt_tokens:
            yield entry


def _cells(path: Path, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # a cell that is too long
        raise _damaged(path, number, "is not a line of a CSV file") from None


def _mooncake(path: Path, lines: Iterator[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            time, prompt, output = (data[name] for name in MOONCAKE)
            pieces = tuple(data.get("hash_ids") or ())
            if not all(type(piece) is int and 0 <= piece < MAX_HASH for piece in pieces):
                raise ValueError
            entry = Entry(_seconds(time), number, _length(prompt), _length(output), pieces)
        except _OutOfRange as error:
            raise _damaged(path, number, str(error)) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            raise _damaged(path, number, f"is not a JSON object with {', '.join(MOONCAKE)}") from None
        if entry.prompt_tokens:
            yield entry


def _seconds(milliseconds: object) -> float:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        raise ValueError
    seconds = milliseconds / 1000
    if not math.isfinite(seconds):
        raise ValueError
    return seconds


def _length(value: object) -> int:
    """A number of tokens. Raises ValueError, and _OutOfRange for a number that no request can have."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    length = int(value)
    if not 0 <= length <= MAX_LEN:
        raise _OutOfRange(f"has a length of {length:.8g} tokens: only 0 to {MAX_LEN:,} can be simulated")
    return length


def _damaged(path: Path, line: int, what: str) -> ConfigError:
    return ConfigError(f"line {line} of the trace {path} {what}")
