"""Calls in JSON after a mark: one object, `MARK {"name": "f", "arguments": {…}}`, or a list of them.

Granite 3, Phi-4-mini, InternLM and Cohere's Command write them so; they differ in marks and keys.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace.text.tools.call_json import Keys
from headrace.text.tools.call_parser import CallParser, Tools
from headrace.text.tools.pieces import Piece

_SPACE = re.compile(r"\s*")


class MarkedJsonParser(CallParser):
    """A reply with objects or lists of objects after a mark, which may be anywhere.

    tools: unused: after a mark any name is a call. hidden: see `CallParser`.
    """

    def __init__(self, tools: Tools, hidden: Collection[str] = ()) -> None:
        super().__init__(hidden)
        self._in_list = False

    def _begin(self) -> None:
        self._in_list = False
        self._state = self._read_head

    def _read_head(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_SPACE, text, at)
        if end == len(text):
            return end
        if text[end] == "[":
            self._held.append("[")
            self._in_list = True
            self._begin_call()
            return end + 1
        return self._read_single(text, end, pieces)

    def _read_single(self, text: str, at: int, pieces: list[Piece]) -> int:
        """What follows a mark, where it is not a list."""
        if text[at] == "{":
            self._begin_call()
        else:
            self._no_call("", pieces)
        return at

    def _read_after(self, text: str, at: int, pieces: list[Piece]) -> int:
        if not self._in_list:
            return super()._read_after(text, at, pieces)
        end = self._hold(_SPACE, text, at)
        if end == len(text):
            return end
        if text[end] == ",":
            self._held.append(",")
            self._begin_call()
            return end + 1
        self._held = []
        self._in_list = False
        return end + (text[end] == "]")


TOOL_CALL, TOOL_CALL_END = "<|tool_call|>", "<|/tool_call|>"


class GraniteParser(MarkedJsonParser):
    """Granite 3: `<|tool_call|>[{"name": "f", "arguments": {…}}]`, or `<tool_call>` instead of the token."""

    marks = (TOOL_CALL, "<tool_call>")
    closings = ("</tool_call>",)


class Phi4MiniParser(MarkedJsonParser):
    """Phi-4-mini: `<|tool_call|>[{"name": "f", "arguments": {…}}]<|/tool_call|>`, or `functools[{…}]`."""

    marks = (TOOL_CALL, "functools[")
    closings = (TOOL_CALL_END,)

    def _begin(self) -> None:
        super()._begin()
        if self._mark != TOOL_CALL:
            self._in_list = True
            self._begin_call()


ACTION_START, PLUGIN, ACTION_END = "<|action_start|>", "<|plugin|>", "<|action_end|>"


class InternLMParser(MarkedJsonParser):
    """InternLM 2.5 and 3: `<|action_start|><|plugin|>{"name": "f", "parameters": {…}}<|action_end|>`."""

    marks = (ACTION_START + PLUGIN,)
    closings = (ACTION_END,)


START_ACTION, END_ACTION = "<|START_ACTION|>", "<|END_ACTION|>"


class CohereParser(MarkedJsonParser):
    """Command R7B and A: `<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {…}}]` and a mark."""

    marks = (START_ACTION,)
    closings = (END_ACTION,)
    keys = Keys("tool_name", ("parameters",), ("tool_call_id",))
