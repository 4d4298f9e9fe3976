"""Calls as Hermes, Qwen 2.5 and Qwen 3 write them: `<tool_call>{"name": "f", "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from collections.abc import Collection

from headrace.text.tools.call_parser import CallParser, Tools

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesParser(CallParser):
    """A reply with calls in tags anywhere. A closing tag may be missing.

    tools: unused: in tags any name is a call. hidden: see `CallParser`.
    """

    marks = (OPEN,)
    closings = (CLOSE,)

    def __init__(self, tools: Tools, hidden: Collection[str] = ()) -> None:
        super().__init__(hidden)
