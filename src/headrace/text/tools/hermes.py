"""Calls as Hermes, Qwen 2.5 and Qwen 3 write them: `<tool_call>{"name": "f", "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from collections.abc import Collection

from headrace.text.tools.call_parser import CallParser
from headrace.text.tools.pieces import Piece, cut_off, past_space

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesParser(CallParser):
    """A reply with calls in tags anywhere. A closing tag may be missing.

    tools: unused: in tags any name is a call. hidden: see `CallParser`.
    """

    marker = OPEN

    def __init__(self, tools: Collection[str], hidden: Collection[str] = ()) -> None:
        super().__init__(hidden)

    def _read_after(self, text: str, at: int, pieces: list[Piece]) -> int:
        at = past_space(text, at)
        if cut_off(text, at, CLOSE):
            self._rest = text[at:]
            return len(text)
        self._state = self._read_content
        return at + len(CLOSE) if text.startswith(CLOSE, at) else at
