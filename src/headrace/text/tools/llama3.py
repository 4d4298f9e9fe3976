"""Calls as Llama 3 writes them: a reply that is `{"name": "f", "parameters": {…}}`, or several, separated by `;`.

`<|python_tag|>` may precede a call, and text may precede the tag. Llama 4 has other tags.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace.text.tools.call_parser import CallParser, Tools
from headrace.text.tools.pieces import Piece, past_space

TAG = "<|python_tag|>"
PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"

_BETWEEN = re.compile(r"[\s;,]*")


class Llama3Parser(CallParser):
    """JSON at the beginning of a reply, or after another call, is a call if it names one of the tools; after the tag
    it is a call whatever it names.

    tools: names of the tools. hidden: see `CallParser`.
    """

    marks = (TAG,)

    def __init__(self, tools: Tools, hidden: Collection[str] = ()) -> None:
        super().__init__(hidden)
        self._tools = tools
        self._state = self._read_beginning

    def _read_beginning(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = past_space(text, at)
        self._prose.add(text[at:end], pieces)
        return self._read_start(text, end, pieces)

    def _read_after(self, text: str, at: int, pieces: list[Piece]) -> int:
        closing = next((each for each in self.closings if text.startswith(each, at)), "")
        if closing:
            return at + len(closing)
        if any(self._waits(text, at, each) for each in self.closings):
            return len(text)
        return self._read_start(text, self._hold(_BETWEEN, text, at), pieces)

    def _read_start(self, text: str, at: int, pieces: list[Piece]) -> int:
        """A call, with or without a tag, or content."""
        if at == len(text):
            return at
        if text[at] == "{":
            self._begin_call(self._tools)
            return at
        (tag,) = self.marks
        if self._waits(text, at, tag):
            return len(text)
        if not text.startswith(tag, at):
            self._no_call("", pieces)
            return at
        self._held.append(tag)
        self._begin_call()
        return at + len(tag)


class Llama4JsonParser(Llama3Parser):
    """Llama 4, whose calls in JSON may stand between `<|python_start|>` and `<|python_end|>`."""

    marks = (PYTHON_START,)
    closings = (PYTHON_END,)
