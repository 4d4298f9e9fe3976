"""Calls as Mistral writes them: `[TOOL_CALLS] [{"name": "f", "arguments": {…}}, …]`, and since version 11 of its
tokenizer `[TOOL_CALLS]f[ARGS]{…}`, where `[CALL_ID]…` may precede `[ARGS]`."""

from __future__ import annotations

import re

from headrace.text.tools.call_json import is_name
from headrace.text.tools.marked_json import MarkedJsonParser
from headrace.text.tools.pieces import Piece

OPEN = "[TOOL_CALLS]"
ID = "[CALL_ID]"
ARGUMENTS = "[ARGS]"

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[\w.\-:/]*", re.ASCII)


class MistralParser(MarkedJsonParser):
    """A reply with calls after a marker, which may be anywhere.

    tools: unused: after the marker any name is a call. hidden: see `CallParser`.
    """

    marks = (OPEN,)

    def _read_single(self, text: str, at: int, pieces: list[Piece]) -> int:
        self._word = []
        self._state = self._read_name
        return at

    def _read_name(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._read_word(_WORD, text, at, pieces)
        if end == len(text) or self._state != self._read_name:
            return end
        if text[end] == "{":
            self._named(pieces)
            return end
        for marker, follow in ((ARGUMENTS, self._read_gap), (ID, self._read_id)):
            if text.startswith(marker, end):
                self._held.append(marker)
                self._state = follow
                return end + len(marker)
            if self._waits(text, end, marker):
                return len(text)
        self._no_call("", pieces)
        return end

    def _read_id(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_WORD, text, at)
        if end == len(text):
            return end
        if text.startswith(ARGUMENTS, end):
            self._held.append(ARGUMENTS)
            self._state = self._read_gap
            return end + len(ARGUMENTS)
        if self._waits(text, end, ARGUMENTS):
            return len(text)
        self._no_call("", pieces)
        return end

    def _read_gap(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_SPACE, text, at)
        if end < len(text):
            if text[end] == "{":
                self._named(pieces)
            else:
                self._no_call("", pieces)
        return end

    def _named(self, pieces: list[Piece]) -> None:
        """Arguments follow."""
        name = "".join(self._word)
        if is_name(name):
            self._begin_arguments(name, pieces)
        else:
            self._no_call("", pieces)
