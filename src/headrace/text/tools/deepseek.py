"""Calls as DeepSeek V2.5, V3 and R1 write them, and V3.1.

Until R1: `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, the arguments between lines that are
"```json" and "```", `<｜tool▁call▁end｜><｜tool▁calls▁end｜>`. V3.1 has the name before the separator and the
arguments, in one line, after it. The parser reads both.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace.text.tools.call_json import is_name
from headrace.text.tools.call_parser import CallParser, Tools
from headrace.text.tools.pieces import Piece

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
FENCE, FENCE_END = "```json", "```"

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[\w.\-:/]*", re.ASCII)


class DeepSeekParser(CallParser):
    """A reply with calls after a mark, which may be anywhere.

    tools: unused: after a mark any name is a call. hidden: see `CallParser`.
    """

    marks = (CALLS, CALL)
    closings = (FENCE_END, CALL_END, CALLS_END)

    def __init__(self, tools: Tools, hidden: Collection[str] = ()) -> None:
        super().__init__(hidden)
        self._head = ""
        """What stands before the separator."""

    def _begin(self) -> None:
        self._word = []
        self._state = self._read_call_mark if self._mark == CALLS else self._read_head

    def _read_call_mark(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_SPACE, text, at)
        if end == len(text) or self._waits(text, end, CALL):
            return len(text)
        if text.startswith(CALL, end):
            self._held.append(CALL)
            self._state = self._read_head
            return end + len(CALL)
        self._no_call("", pieces)
        return end

    def _read_head(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._read_word(_WORD, text, at, pieces)
        if end == len(text) or self._state != self._read_head:
            return end
        if self._waits(text, end, SEPARATOR):
            return len(text)
        if not text.startswith(SEPARATOR, end):
            self._no_call("", pieces)
            return end
        self._held.append(SEPARATOR)
        self._head, self._word = "".join(self._word), []
        self._state = self._read_kind
        return end + len(SEPARATOR)

    def _read_kind(self, text: str, at: int, pieces: list[Piece]) -> int:
        """Arguments, or the name."""
        end = self._hold(_SPACE, text, at)
        if end < len(text):
            if text[end] == "{":
                self._named(self._head, pieces)
            else:
                self._state = self._read_name
        return end

    def _read_name(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._read_word(_WORD, text, at, pieces)
        if end < len(text) and self._state == self._read_name:
            self._state = self._read_fence
        return end

    def _read_fence(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_SPACE, text, at)
        if end == len(text) or self._waits(text, end, FENCE):
            return len(text)
        if text.startswith(FENCE, end):
            self._held.append(FENCE)
            self._state = self._read_gap
            return end + len(FENCE)
        self._state = self._read_gap
        return end

    def _read_gap(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_SPACE, text, at)
        if end < len(text):
            if text[end] == "{":
                self._named("".join(self._word), pieces)
            else:
                self._no_call("", pieces)
        return end

    def _named(self, name: str, pieces: list[Piece]) -> None:
        """Arguments follow."""
        if is_name(name):
            self._begin_arguments(name, pieces)
        else:
            self._no_call("", pieces)
