"""Calls as Hermes, Qwen 2.5 and Qwen 3 write them: `<tool_call>{"name": "f", "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from collections.abc import Collection

from headrace.text.tools.call_json import CallReader
from headrace.text.tools.pieces import Piece, Prose, cut_off

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesParser:
    """A reply with calls in tags anywhere. A closing tag may be missing.

    tools: not asked: the tags say that a call is meant. hidden: markers to leave out of the content, see `Prose`.
    """

    def __init__(self, tools: Collection[str], hidden: Collection[str] = ()) -> None:
        self._prose = Prose(hidden)
        self._calls = 0
        self._call: CallReader | None = None
        self._behind = False
        self._rest = ""

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        text = self._rest + text
        self._rest = ""
        at = 0
        while at < len(text):
            if self._call is not None:
                at = self._read_call(self._call, text, at, pieces)
            elif self._behind:
                at = self._read_behind(text, at)
            else:
                at = self._read_prose(text, at, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._call is not None:
            self._call.finish(pieces)
            self._end_call(self._call, pieces)
        self._prose.add(self._rest, pieces)
        self._prose.finish(pieces)
        self._rest = ""
        return pieces

    def _read_prose(self, text: str, at: int, pieces: list[Piece]) -> int:
        found, self._rest = self._prose.before(OPEN, text, at, pieces)
        if found < 0:
            return len(text)
        self._call = CallReader(self._calls, before=OPEN)
        return found + len(OPEN)

    def _read_call(self, call: CallReader, text: str, at: int, pieces: list[Piece]) -> int:
        at = call.read(text, at, pieces)
        if call.ended or call.broken:
            self._end_call(call, pieces)
        return at

    def _end_call(self, call: CallReader, pieces: list[Piece]) -> None:
        self._call = None
        if call.broken:
            self._prose.add(call.raw, pieces)
        else:
            self._calls += 1
            self._prose.call()
            self._behind = True

    def _read_behind(self, text: str, at: int) -> int:
        while at < len(text) and text[at].isspace():
            at += 1
        if text.startswith(CLOSE, at):
            self._behind = False
            return at + len(CLOSE)
        if cut_off(text, at, CLOSE):
            self._rest = text[at:]
            return len(text)
        self._behind = False
        return at
