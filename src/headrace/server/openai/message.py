"""A reply as OpenAI's chats have it: the deltas of a stream, and the message that they add up to."""

from __future__ import annotations

import io
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from headrace.server.requests.reply import Reply
from headrace.text.tools.pieces import (
    CallArguments,
    CallBegins,
    Content,
    Piece,
    Reasoning,
)


def message_delta(pieces: list[Piece], reply: Reply, include_reasoning: bool = True) -> dict[str, Any]:
    """Pieces as the `delta` of a chat chunk."""
    if len(pieces) == 1 and isinstance(pieces[0], Content):  # the usual case
        return {"content": pieces[0].text}
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    delta: dict[str, Any] = {"content": content} if content else {}
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    if thoughts and include_reasoning:
        delta["reasoning_content"] = delta["reasoning"] = thoughts
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if isinstance(piece, CallBegins):
            calls[piece.index] = {
                "index": piece.index,
                "id": reply.new_call_id(),
                "type": "function",
                "function": {"name": piece.name, "arguments": ""},
            }
        elif isinstance(piece, CallArguments):
            call = calls.setdefault(piece.index, {"index": piece.index, "function": {"arguments": ""}})
            call["function"]["arguments"] += piece.text
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta


class CalledFunction(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(TypedDict):
    """`content` is null if the message has calls and no text; `reasoning` equals `reasoning_content`."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class MessageBuilder:
    """Joins the deltas of a choice into its message."""

    def __init__(self) -> None:
        self._texts: dict[str, io.StringIO] = {}
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[io.StringIO] = []

    def add(self, delta: dict[str, Any]) -> None:
        for name in ("content", "reasoning_content"):
            if name in delta:
                self._texts.setdefault(name, io.StringIO()).write(delta[name])
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(self._calls):
                self._calls.append(call)
                self._arguments.append(io.StringIO())
            self._arguments[call["index"]].write(call["function"]["arguments"])

    def message(self) -> AssistantMessage:
        texts = {name: text.getvalue() for name, text in self._texts.items()}
        content = texts.get("content", "")
        message: AssistantMessage = {"role": "assistant", "content": content or (None if self._calls else "")}
        if "reasoning_content" in texts:
            message["reasoning_content"] = message["reasoning"] = texts["reasoning_content"]
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["function"]["name"], "arguments": arguments.getvalue()},
                }
                for call, arguments in zip(self._calls, self._arguments, strict=True)
            ]
        return message
