"""Incomplete JSON: where a value ends, and which members of a value are complete."""

from __future__ import annotations

import json
import re
from typing import Any

_PLAIN = re.compile(r"[^\"{}\[\]]*")
_IN_STRING = re.compile(r'[^"\\]*')
_FOREIGN = re.compile(r"[^\s\w+\-.,:\"{}\[\]]", re.ASCII)
"""Not JSON outside of strings; an open value ends before it."""


class JsonSpan:
    """Reads one object, list or string from its first character on; counts brackets, and does not check the rest.

    `read` is called with each piece of text until `ended`. closed: it ended with its own bracket or quote.
    """

    def __init__(self) -> None:
        self.ended = False
        self.closed = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def read(self, text: str, at: int) -> int:
        """Read from text[at] on; returns where the value ends, or len(text)."""
        size = len(text)
        while at < size:
            if self._escaped:
                self._escaped = False
                at += 1
            elif self._in_string:
                at = self._string(text, at)
            else:
                at = self._structure(text, at)
            if self.ended:
                return at
        return size

    def _string(self, text: str, at: int) -> int:
        match = _IN_STRING.match(text, at)
        at = at if match is None else match.end()
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.ended = self.closed = self._depth == 0
        return at + 1

    def _structure(self, text: str, at: int) -> int:
        match = _PLAIN.match(text, at)
        end = at if match is None else match.end()
        foreign = _FOREIGN.search(text, at, end)
        if foreign is not None:
            self.ended = True
            return foreign.start()
        if end == len(text):
            return end
        if text[end] == '"':
            self._in_string = True
        else:
            self._depth += 1 if text[end] in "{[" else -1
            self.ended = self.closed = self._depth <= 0
        return end + 1


def is_closed(text: str) -> bool:
    """Whether the text begins with a complete object, list or string."""
    span = JsonSpan()
    span.read(text, 0)
    return span.closed


_PART = re.compile(
    r"""\s*(?:(?P<open>[{\[])|(?P<close>[}\]])|(?P<mark>[,:])|(?P<string>"[^"\\]*(?:\\.[^"\\]*)*")"""
    r"""|(?P<word>[^\s,:{}\[\]"]+))""",
    re.DOTALL,
)
_WORDS = ("true", "false", "null")


def complete_members(text: str) -> dict[str, Any]:
    """The complete members of an object, also those inside of incomplete objects and lists.

    A string is complete with its closing quote, and a number once something follows it. Empty if the text does not
    begin with an object, or with one that cannot be written as JSON (NaN, half of a surrogate pair). Takes linear time.
    """
    closing: list[str] = []
    end = at = 0  # text[:end] becomes JSON with the brackets of `closing`
    key = False
    while (part := _PART.match(text, at)) is not None:
        at = part.end()
        kind, token = part.lastgroup, part[part.lastgroup or 0]
        if kind == "open":
            closing.append("}" if token == "{" else "]")
            key, end = token == "{", at
        elif kind == "close":
            if not closing or closing.pop() != token:
                return {}
            end = at
        elif kind == "mark":
            if token == ",":
                end = part.start("mark")
            key = token == "," and closing[-1:] == ["}"]
        elif not key and (kind == "string" or token in _WORDS):
            end = at
        if not closing:
            break
    try:
        given = json.loads(text[:end] + "".join(reversed(closing)))
        json.dumps(given, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}
