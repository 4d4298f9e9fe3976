"""Calls as a list in Python's words: `[f(city="Paris", days=2), g()]`, as Llama 3.2 and 4 may write them.

A call is passed on when it is complete: its arguments change their language on the way.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection
from typing import Any

from headrace.text.tools.call_json import MAX_NAME_CHARS, is_name
from headrace.text.tools.pieces import CallArguments, CallBegins, Piece, Prose

MAX_CALL_CHARS = 65_536
"""Longest call; what is longer is content."""

_NAME = re.compile(r"[A-Za-z0-9_.\-]*")
_PLAIN = re.compile(r"[^\"'()\[\]{}]*")
_QUOTED = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_SPACE = re.compile(r"\s*")
_NAMED = {"true": True, "false": False, "null": None}


class PythonicParser:
    """A reply that is a list of calls of the tools, from its first character on; anything else is content.

    tools: names of the tools; others are not called. hidden: unused, for this format has no marker.
    """

    def __init__(self, tools: Collection[str], hidden: Collection[str] = ()) -> None:
        self._tools = tools
        self._prose = Prose()
        self._calls = 0
        self._name: list[str] = []
        self._arguments: list[str] = []
        self._chars = 0
        self._held: list[str] = []
        """What was read behind the last call, for it may be content."""
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._state: Callable[[str, int, list[Piece]], int] = self._read_open

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        at = 0
        while at < len(text):
            at = self._state(text, at, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        self._give_up(pieces)
        self._prose.finish(pieces)
        return pieces

    def _read_open(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = _past_space(text, at)
        self._prose.add(text[at:end], pieces)
        if end < len(text):
            if text[end] == "[":
                self._held.append("[")
                self._state = self._read_gap
                return end + 1
            self._state = self._read_content
        return end

    def _read_gap(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = _past_space(text, at)
        self._held.append(text[at:end])
        if end < len(text):
            self._state = self._read_name
        return end

    def _read_name(self, text: str, at: int, pieces: list[Piece]) -> int:
        match = _NAME.match(text, at)
        end = at if match is None else match.end()
        room = MAX_NAME_CHARS - sum(map(len, self._name))
        self._name.append(text[at : min(end, at + room)])
        if end - at > room:
            self._give_up(pieces)
            return at + room
        if end == len(text):
            return end
        if text[end] != "(" or "".join(self._name) not in self._tools:
            self._give_up(pieces)
            return end
        self._arguments = ["("]
        self._chars = self._depth = 1
        self._state = self._read_arguments
        return end + 1

    def _read_arguments(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._span(text, at)
        room = MAX_CALL_CHARS - self._chars
        if end - at > room:
            self._arguments.append(text[at : at + room])
            self._give_up(pieces)
            return at + room
        self._arguments.append(text[at:end])
        self._chars += end - at
        if self._depth == 0:
            name = "".join(self._name)
            arguments = _as_json(name, "".join(self._arguments))
            if arguments is None:
                self._give_up(pieces)
            else:
                pieces += [CallBegins(self._calls, name), CallArguments(self._calls, arguments)]
                self._calls += 1
                self._name, self._arguments, self._held = [], [], []
                self._prose.call()
                self._state = self._read_behind
        return end

    def _read_behind(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = _past_space(text, at)
        self._held.append(text[at:end])
        if end < len(text):
            if text[end] == ",":
                self._held.append(",")
                self._state = self._read_gap
                return end + 1
            if text[end] == "]":
                self._held = []
                self._state = self._read_content
                return end + 1
            self._give_up(pieces)
        return end

    def _read_content(self, text: str, at: int, pieces: list[Piece]) -> int:
        self._prose.add(text[at:], pieces)
        return len(text)

    def _give_up(self, pieces: list[Piece]) -> None:
        self._prose.add("".join([*self._held, *self._name, *self._arguments]), pieces)
        self._held, self._name, self._arguments = [], [], []
        self._state = self._read_content

    def _span(self, text: str, at: int) -> int:
        """Follows brackets and strings from text[at] on to the end of the call, or of the text."""
        while at < len(text) and self._depth:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            if self._quote:
                match = _QUOTED[self._quote].match(text, at)
                end = at if match is None else match.end()
                if end < len(text):
                    self._escaped = text[end] == "\\"
                    if not self._escaped:
                        self._quote = ""
                at = end + 1
                continue
            match = _PLAIN.match(text, at)
            end = at if match is None else match.end()
            if end < len(text):
                if text[end] in "\"'":
                    self._quote = text[end]
                else:
                    self._depth += 1 if text[end] in "([{" else -1
            at = end + 1
        return min(at, len(text))


def _past_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _as_json(name: str, arguments: str) -> str | None:
    """The keyword arguments of a call as a JSON object; None where they are not plain data."""
    if not is_name(name):
        return None
    try:
        tree = ast.parse("f" + arguments, mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args or not isinstance(tree.func, ast.Name):
            return None
        values = {keyword.arg: _plain(keyword.value) for keyword in tree.keywords}
        if None in values or len(values) < len(tree.keywords):
            return None
        written = json.dumps(values, ensure_ascii=False, allow_nan=False)
        written.encode()
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return written


def _plain(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=word) if word in _NAMED:
            return _NAMED[word]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_plain(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _plain(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("no plain data")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("no string")
