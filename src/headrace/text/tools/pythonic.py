"""Calls in Python's syntax: a list, `[f(city="Paris", days=2), g()]`, as Llama 3.2 may write it, or between marks, as
Llama 4, LFM 2 and OLMo 3 do.

A call is passed on when it is complete, as its arguments are converted to JSON.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from typing import Any

from headrace.text.tools.call_json import is_name
from headrace.text.tools.call_parser import CallParser, Tools
from headrace.text.tools.llama3 import PYTHON_END, PYTHON_START
from headrace.text.tools.pieces import CallArguments, CallBegins, Piece, past_space

MAX_CALL_CHARS = 65_536
"""Longest call; what is longer is content."""

_NAME = re.compile(r"[A-Za-z0-9_.\-]*")
_PLAIN = re.compile(r"[^\"'()\[\]{}]*")
_QUOTED = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_SPACE = re.compile(r"\s*")
_NAMED = {"true": True, "false": False, "null": None}


class PythonicParser(CallParser):
    """A reply that is a list of calls of the tools, from its first character on; anything else is content.

    tools: names of the tools; other names are not calls. hidden: see `CallParser`.
    """

    def __init__(self, tools: Tools, hidden: Collection[str] = ()) -> None:
        super().__init__(hidden)
        self._tools = tools
        self._arguments: list[str] = []
        self._chars = 0
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._state = self._read_open

    def _read_open(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = past_space(text, at)
        self._prose.add(text[at:end], pieces)
        if end < len(text):
            if text[end] == "[":
                self._held.append("[")
                self._state = self._read_gap
                return end + 1
            self._state = self._read_content
        return end

    def _read_gap(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_SPACE, text, at)
        if end < len(text):
            self._word = []
            self._state = self._read_name
        return end

    def _read_name(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._read_word(_NAME, text, at, pieces)
        if end == len(text) or self._state != self._read_name:
            return end
        if text[end] != "(" or not self._is_called("".join(self._word)):
            self._no_call("", pieces)
            return end
        self._arguments = ["("]
        self._held.append("(")
        self._chars = self._depth = 1
        self._state = self._read_arguments
        return end + 1

    def _read_arguments(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._read_span(text, at)
        room = MAX_CALL_CHARS - self._chars
        if end - at > room:
            self._no_call(text[at : at + room], pieces)
            return at + room
        self._arguments.append(text[at:end])
        self._held.append(text[at:end])
        self._chars += end - at
        if self._depth == 0:
            name = "".join(self._word)
            arguments = _as_json(name, "".join(self._arguments))
            if arguments is None:
                self._no_call("", pieces)
            else:
                pieces += [CallBegins(self._calls, name), CallArguments(self._calls, arguments)]
                self._called()
        return end

    def _read_after(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_SPACE, text, at)
        if end < len(text):
            if text[end] == ",":
                self._held.append(",")
                self._state = self._read_gap
                return end + 1
            if text[end] == "]":
                self._held = []
                self._state = self._read_content
                return end + 1
            self._no_call("", pieces)
        return end

    def _read_content(self, text: str, at: int, pieces: list[Piece]) -> int:
        self._prose.add(text[at:], pieces)
        return len(text)

    def _is_called(self, name: str) -> bool:
        """A call may have this name."""
        return name in self._tools

    def _read_span(self, text: str, at: int) -> int:
        """Reads brackets and strings from text[at] to the end of the call, or of the text."""
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
    raise ValueError("not plain data")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("not a string")


class MarkedPythonicParser(PythonicParser):
    """A list of calls after a mark, which may be anywhere; after it any name is a call."""

    def __init__(self, tools: Tools, hidden: Collection[str] = ()) -> None:
        super().__init__(tools, hidden)
        self._in_list = False
        self._state = self._read_content

    def _begin(self) -> None:
        self._in_list = False
        self._state = self._read_list

    def _read_list(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_SPACE, text, at)
        if end < len(text):
            if text[end] == "[":
                self._held.append("[")
                self._in_list = True
                self._state = self._read_gap
                return end + 1
            self._no_call("", pieces)
        return end

    def _is_called(self, name: str) -> bool:
        return True

    def _read_content(self, text: str, at: int, pieces: list[Piece]) -> int:
        return CallParser._read_content(self, text, at, pieces)

    def _read_after(self, text: str, at: int, pieces: list[Piece]) -> int:
        if not self._in_list:
            return CallParser._read_after(self, text, at, pieces)
        end = self._hold(_SPACE, text, at)
        if end < len(text):
            if text[end] == ",":
                self._held.append(",")
                self._state = self._read_gap
                return end + 1
            self._held = []
            self._in_list = False
            end += text[end] == "]"
        return end


class Llama4Parser(MarkedPythonicParser):
    """Llama 4: the list between `<|python_start|>` and `<|python_end|>`, or a reply that is the list."""

    marks = (PYTHON_START,)
    closings = (PYTHON_END,)

    def __init__(self, tools: Tools, hidden: Collection[str] = ()) -> None:
        super().__init__(tools, hidden)
        self._state = self._read_open

    def _read_open(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = super()._read_open(text, at, pieces)
        self._in_list = self._state == self._read_gap
        return end

    def _is_called(self, name: str) -> bool:
        return self._mark == PYTHON_START or name in self._tools


CALL_START, CALL_END = "<|tool_call_start|>", "<|tool_call_end|>"


class Lfm2Parser(MarkedPythonicParser):
    """LFM 2: `<|tool_call_start|>[f(city="Paris")]<|tool_call_end|>`."""

    marks = (CALL_START,)
    closings = (CALL_END,)


CALLS, CALLS_END = "<function_calls>", "</function_calls>"


class Olmo3Parser(MarkedPythonicParser):
    """OLMo 3: calls between `<function_calls>` and `</function_calls>`, each in a line, without a list around them."""

    marks = (CALLS,)
    closings = (CALLS_END,)

    def _begin(self) -> None:
        self._in_list = False
        self._state = self._read_gap

    def _read_after(self, text: str, at: int, pieces: list[Piece]) -> int:
        """The next call, or the end of all; anything else is content."""
        end = self._hold(_SPACE, text, at)
        if end == len(text):
            return end
        if text[end] in "<,":
            self._held = []
            if text[end] == "<":
                return CallParser._read_after(self, text, end, pieces)
            return end + 1
        self._state = self._read_gap
        return end
