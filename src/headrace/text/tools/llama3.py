"""Calls as Llama 3 writes them: a reply that is `{"name": "f", "parameters": {…}}`, or several, each behind a `;`.

`<|python_tag|>` may stand in front of a call, and then text may stand in front of that.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace.text.tools.call_json import CallReader
from headrace.text.tools.pieces import Piece, Prose, cut_off

TAG = "<|python_tag|>"

_BETWEEN = re.compile(r"[\s;,]*")


class Llama3Parser:
    """A reply that begins with JSON is a call only if it names one of the tools; behind the tag any name will do.

    tools: names of the tools. hidden: markers to leave out of the content, see `Prose`.
    """

    def __init__(self, tools: Collection[str], hidden: Collection[str] = ()) -> None:
        self._tools = tools
        self._prose = Prose(hidden)
        self._calls = 0
        self._call: CallReader | None = None
        self._may_begin = True
        """A call may begin here without a tag."""
        self._between: list[str] = []
        """What separates the last call from the next one, if there is a next one."""
        self._rest = ""

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        text = self._rest + text
        self._rest = ""
        at = 0
        while at < len(text):
            if self._call is not None:
                at = self._call.read(text, at, pieces)
                if self._call.ended or self._call.broken:
                    self._end_call(self._call, pieces)
            elif self._may_begin:
                at = self._read_beginning(text, at, pieces)
            else:
                at = self._read_prose(text, at, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._call is not None:
            self._call.finish(pieces)
            self._end_call(self._call, pieces)
        self._no_call(pieces)
        self._prose.add(self._rest, pieces)
        self._prose.finish(pieces)
        self._rest = ""
        return pieces

    def _read_beginning(self, text: str, at: int, pieces: list[Piece]) -> int:
        if self._calls:
            match = _BETWEEN.match(text, at)
            end = at if match is None else match.end()
            self._between.append(text[at:end])
        else:
            end = at
            while end < len(text) and text[end].isspace():
                end += 1
            self._prose.add(text[at:end], pieces)
        if end == len(text):
            return end
        if text[end] == "{":
            self._begin_call(CallReader(self._calls, self._tools))
            return end
        if text.startswith(TAG, end):
            self._begin_call(self._tagged())
            return end + len(TAG)
        if cut_off(text, end, TAG):
            self._rest = text[end:]
            return len(text)
        self._no_call(pieces)
        return end

    def _read_prose(self, text: str, at: int, pieces: list[Piece]) -> int:
        found, self._rest = self._prose.before(TAG, text, at, pieces)
        if found < 0:
            return len(text)
        self._begin_call(self._tagged())
        return found + len(TAG)

    def _tagged(self) -> CallReader:
        return CallReader(self._calls, before=TAG)

    def _begin_call(self, call: CallReader) -> None:
        self._call = call
        self._may_begin = False

    def _end_call(self, call: CallReader, pieces: list[Piece]) -> None:
        self._call = None
        if call.broken:
            self._no_call(pieces)
            self._prose.add(call.raw, pieces)
        else:
            self._calls += 1
            self._between = []
            self._prose.call()
            self._may_begin = True

    def _no_call(self, pieces: list[Piece]) -> None:
        self._may_begin = False
        self._prose.add("".join(self._between), pieces)
        self._between = []
