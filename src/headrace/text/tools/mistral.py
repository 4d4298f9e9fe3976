"""Calls as Mistral writes them: `[TOOL_CALLS] [{"name": "f", "arguments": {…}}, …]`, and since version 11 of its
tokenizer `[TOOL_CALLS]f[ARGS]{…}`, where `[CALL_ID]…` may precede `[ARGS]`."""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace.text.tools.call_json import MAX_NAME_CHARS, is_name
from headrace.text.tools.call_parser import CallParser
from headrace.text.tools.json_text import JsonSpan
from headrace.text.tools.pieces import CallArguments, CallBegins, Piece, cut_off

OPEN = "[TOOL_CALLS]"
ID = "[CALL_ID]"
ARGUMENTS = "[ARGS]"

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[\w.\-:/]*", re.ASCII)


class MistralParser(CallParser):
    """A reply with calls after a marker, which may be anywhere.

    tools: unused: after the marker any name is a call. hidden: see `CallParser`.
    """

    marker = OPEN

    def __init__(self, tools: Collection[str], hidden: Collection[str] = ()) -> None:
        super().__init__(hidden)
        self._span: JsonSpan | None = None
        self._name: list[str] = []

    def _begin(self) -> None:
        self._state = self._read_head

    def _read_head(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_SPACE, text, at)
        if end < len(text):
            if text[end] == "[":
                self._held.append("[")
                self._begin_call()
                return end + 1
            self._name = []
            self._state = self._read_name
        return end

    def _read_after(self, text: str, at: int, pieces: list[Piece]) -> int:
        """What follows a call in a list."""
        end = self._hold(_SPACE, text, at)
        if end == len(text):
            return end
        if text[end] == ",":
            self._held.append(",")
            self._begin_call()
            return end + 1
        self._held = []
        self._state = self._read_content
        return end + (text[end] == "]")

    def _read_name(self, text: str, at: int, pieces: list[Piece]) -> int:
        match = _WORD.match(text, at)
        end = at if match is None else match.end()
        room = MAX_NAME_CHARS - sum(map(len, self._name))
        if end - at > room:
            self._no_call(text[at : at + room], pieces)
            return at + room
        self._name.append(text[at:end])
        self._held.append(text[at:end])
        if end == len(text):
            return end
        if text[end] == "{":
            self._state = self._read_arguments
            return end
        for marker, follow in ((ARGUMENTS, self._read_gap), (ID, self._read_id)):
            if text.startswith(marker, end):
                self._held.append(marker)
                self._state = follow
                return end + len(marker)
            if cut_off(text, end, marker):
                self._rest = text[end:]
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
        if cut_off(text, end, ARGUMENTS):
            self._rest = text[end:]
            return len(text)
        self._no_call("", pieces)
        return end

    def _read_gap(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_SPACE, text, at)
        if end < len(text):
            if text[end] != "{":
                self._no_call("", pieces)
                return end
            self._state = self._read_arguments
        return end

    def _read_arguments(self, text: str, at: int, pieces: list[Piece]) -> int:
        if self._span is None:
            name = "".join(self._name)
            if not is_name(name):
                self._no_call("", pieces)
                return at
            self._span = JsonSpan()
            self._held = []
            pieces.append(CallBegins(self._calls, name))
            self._prose.call()
        end = self._span.read(text, at)
        if end > at:
            pieces.append(CallArguments(self._calls, text[at:end]))
        if self._span.ended:
            self._span = None
            self._calls += 1
            self._state = self._read_content
        return end
