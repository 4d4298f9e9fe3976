"""Calls as Llama 3 writes them: a reply that is `{"name": "f", "parameters": {…}}`, or several, separated by `;`.

`<|python_tag|>` may precede a call, and text may precede the tag.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace.text.tools.call_parser import CallParser
from headrace.text.tools.pieces import Piece, cut_off, past_space

TAG = "<|python_tag|>"

_BETWEEN = re.compile(r"[\s;,]*")


class Llama3Parser(CallParser):
    """JSON at the beginning of a reply, or after another call, is a call if it names one of the tools; after the tag
    it is a call whatever it names.

    tools: names of the tools. hidden: see `CallParser`.
    """

    marker = TAG

    def __init__(self, tools: Collection[str], hidden: Collection[str] = ()) -> None:
        super().__init__(hidden)
        self._tools = tools
        self._state = self._read_beginning

    def _read_beginning(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = past_space(text, at)
        self._prose.add(text[at:end], pieces)
        return self._read_start(text, end, pieces)

    def _read_after(self, text: str, at: int, pieces: list[Piece]) -> int:
        return self._read_start(text, self._hold(_BETWEEN, text, at), pieces)

    def _read_start(self, text: str, at: int, pieces: list[Piece]) -> int:
        """A call, with or without a tag, or content."""
        if at == len(text):
            return at
        if text[at] == "{":
            self._begin_call(self._tools)
            return at
        if cut_off(text, at, TAG):
            self._rest = text[at:]
            return len(text)
        if not text.startswith(TAG, at):
            self._no_call("", pieces)
            return at
        self._held.append(TAG)
        self._begin_call()
        return at + len(TAG)
