"""What is known of a JSON object whose text was cut off."""

from __future__ import annotations

import json
import re
from typing import Any

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
