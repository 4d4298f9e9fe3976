"""JSON text that is still arriving: where a value ends, and what is known of one that was cut off."""

from __future__ import annotations

import json
import re
from typing import Any

_PLAIN = re.compile(r"[^\"{}\[\]]*")
_IN_STRING = re.compile(r'[^"\\]*')
_FOREIGN = re.compile(r"[^\s\w+\-.,:\"{}\[\]]", re.ASCII)
"""What JSON cannot have outside of strings; a value that was not closed ends before it."""


class JsonSpan:
    """Follows one object, list or string from its first character on; counts brackets, and does not check the rest.

    `read` is called with each piece of text until `ended`. closed: it has ended with its own bracket or quote.
    """

    def __init__(self) -> None:
        self.ended = False
        self.closed = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def read(self, text: str, at: int) -> int:
        """Go on at text[at]; returns where the value ends, or len(text)."""
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
    """The text begins with an object, list or string that ends in it."""
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
    """The members of an object that are complete, in objects and lists that are not, too; all of them in a whole text.

    A string counts with its closing quote, and a number once something follows it, because it could go on. Empty where
    the text is the beginning of no object, or of one that cannot be
    written as JSON (NaN, half of a surrogate pair). Takes time in proportion to the text.
    """
    closing: list[str] = []
    end = at = 0  # text[:end] becomes JSON when everything that is open is closed
    key = False
    while (part := _PART.match(text, at)) is not None:
        at = part.end()
        kind, said = part.lastgroup, part[part.lastgroup or 0]
        if kind == "open":
            closing.append("}" if said == "{" else "]")
            key, end = said == "{", at
        elif kind == "close":
            if not closing or closing.pop() != said:
                return {}
            end = at
        elif kind == "mark":
            if said == ",":
                end = part.start("mark")
            key = said == "," and closing[-1:] == ["}"]
        elif not key and (kind == "string" or said in _WORDS):
            end = at
        if not closing:
            break
    try:
        given = json.loads(text[:end] + "".join(reversed(closing)))
        json.dumps(given, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}
