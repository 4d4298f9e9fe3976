"""Calls as Mistral writes them: `[TOOL_CALLS] [{"name": "f", "arguments": {…}}, …]`, and since version 11 of its
tokenizer `[TOOL_CALLS]f[ARGS]{…}`, where `[CALL_ID]…` may stand before `[ARGS]`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from headrace.text.tools.call_json import MAX_NAME_CHARS, CallReader, is_name
from headrace.text.tools.json_text import JsonSpan
from headrace.text.tools.pieces import CallArguments, CallBegins, Piece, Prose, cut_off

OPEN = "[TOOL_CALLS]"
ID = "[CALL_ID]"
ARGUMENTS = "[ARGS]"

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[\w.\-:/]*", re.ASCII)


class MistralParser:
    """A reply with calls behind a marker, which may stand anywhere.

    tools: not asked: the marker says that a call is meant. hidden: markers to leave out of the content, see `Prose`.
    """

    def __init__(self, tools: Collection[str], hidden: Collection[str] = ()) -> None:
        self._prose = Prose(hidden)
        self._calls = 0
        self._call: CallReader | None = None
        self._span: JsonSpan | None = None
        self._name: list[str] = []
        self._held: list[str] = []
        """What was read of a call that is not certain yet, for it may be content."""
        self._rest = ""
        self._state: Callable[[str, int, list[Piece]], int] = self._read_prose

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        text = self._rest + text
        self._rest = ""
        at = 0
        while at < len(text):
            at = self._state(text, at, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._call is not None:
            self._call.finish(pieces)
            self._end_call(self._call, pieces)
        self._prose.add("".join(self._held) + self._rest, pieces)
        self._prose.finish(pieces)
        self._held, self._rest = [], ""
        return pieces

    # ---- What may come next. Each takes some of the text, at least one character or a turn to another state. ----

    def _read_prose(self, text: str, at: int, pieces: list[Piece]) -> int:
        found, self._rest = self._prose.before(OPEN, text, at, pieces)
        if found < 0:
            return len(text)
        self._held.append(OPEN)
        self._state = self._read_head
        return found + len(OPEN)

    def _read_head(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold_space(text, at)
        if end < len(text):
            if text[end] == "[":
                self._held.append("[")
                self._state = self._read_item
                return end + 1
            self._name = []
            self._state = self._read_name
        return end

    def _read_item(self, text: str, at: int, pieces: list[Piece]) -> int:
        """One object of a list."""
        if self._call is None:
            self._call = CallReader(self._calls, before="".join(self._held))
            self._held = []
        at = self._call.read(text, at, pieces)
        if self._call.ended or self._call.broken:
            self._end_call(self._call, pieces)
        return at

    def _read_behind_item(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold_space(text, at)
        if end == len(text):
            return end
        if text[end] == ",":
            self._held.append(",")
            self._state = self._read_item
            return end + 1
        self._held = []
        self._state = self._read_prose
        return end + (text[end] == "]")

    def _read_name(self, text: str, at: int, pieces: list[Piece]) -> int:
        match = _WORD.match(text, at)
        end = at if match is None else match.end()
        room = MAX_NAME_CHARS - sum(map(len, self._name))
        if end - at > room:
            return self._fail(text, at, at + room, pieces)
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
        return self._fail(text, end, end, pieces)

    def _read_id(self, text: str, at: int, pieces: list[Piece]) -> int:
        match = _WORD.match(text, at)
        end = at if match is None else match.end()
        self._held.append(text[at:end])
        if end == len(text):
            return end
        if text.startswith(ARGUMENTS, end):
            self._held.append(ARGUMENTS)
            self._state = self._read_gap
            return end + len(ARGUMENTS)
        if cut_off(text, end, ARGUMENTS):
            self._rest = text[end:]
            return len(text)
        return self._fail(text, end, end, pieces)

    def _read_gap(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold_space(text, at)
        if end < len(text):
            if text[end] != "{":
                return self._fail(text, end, end, pieces)
            self._state = self._read_arguments
        return end

    def _read_arguments(self, text: str, at: int, pieces: list[Piece]) -> int:
        if self._span is None:
            name = "".join(self._name)
            if not is_name(name):
                return self._fail(text, at, at, pieces)
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
            self._state = self._read_prose
        return end

    # ---- Parts of these ----

    def _hold_space(self, text: str, at: int) -> int:
        match = _SPACE.match(text, at)
        end = at if match is None else match.end()
        self._held.append(text[at:end])
        return end

    def _fail(self, text: str, at: int, end: int, pieces: list[Piece]) -> int:
        """No call: text[:end] has been looked at, of which text[at:end] is not held yet."""
        self._prose.add("".join(self._held) + text[at:end], pieces)
        self._held = []
        self._state = self._read_prose
        return end

    def _end_call(self, call: CallReader, pieces: list[Piece]) -> None:
        self._call = None
        if call.broken:
            self._prose.add(call.raw, pieces)
            self._state = self._read_prose
        else:
            self._calls += 1
            self._prose.call()
            self._state = self._read_behind_item
