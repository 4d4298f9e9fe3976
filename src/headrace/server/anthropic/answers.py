"""Answers of the Messages API: content blocks, the events of a stream, and errors.

Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from headrace.server.http.dialect import Dialect
from headrace.server.http.errors import ErrorAnswer
from headrace.text.tools.json_text import complete_members
from headrace.text.tools.pieces import CallArguments, CallBegins, Content, Piece, Reasoning

PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessagesErrorDetail(TypedDict):
    type: str
    message: str


class MessagesErrorAnswer(TypedDict):
    """Errors of the Messages API."""

    type: Literal["error"]
    error: MessagesErrorDetail
    request_id: str | None


def messages_error(status: int, body: ErrorAnswer, request_id: str | None = None) -> MessagesErrorAnswer:
    """An error body in Anthropic's form."""
    default = "api_error" if status >= 500 else "invalid_request_error"
    error: MessagesErrorDetail = {"type": _TYPES.get(status, default), "message": body["error"]["message"]}
    return {"type": "error", "error": error, "request_id": request_id}


DIALECT = Dialect(PATHS.__contains__, messages_error, b"request-id")


Event = dict[str, Any]

_STARTS: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_FIELDS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
_DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


class MessageBuilder:
    """Consumes the pieces of a reply in order. `blocks` are the complete ones.

    new_call_id: makes the ids of calls. thinks: thinking is in the answer.
    """

    def __init__(self, new_call_id: Callable[[], str], thinks: bool) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._new_call_id = new_call_id
        self._thinks = thinks
        self._open: dict[str, Any] | None = None
        self._parts: list[str] = []

    def add(self, pieces: Sequence[Piece]) -> list[Event]:
        """The events of an addition."""
        events: list[Event] = []
        for piece in pieces:
            match piece:
                case Content(text):
                    events += self._text("text", text)
                case Reasoning(text) if self._thinks:
                    events += self._text("thinking", text)
                case CallBegins(_, name):
                    call = {"type": "tool_use", "id": self._new_call_id(), "name": name, "input": {}}
                    events += [*self.close(), self._begin(call)]
                case CallArguments(_, text) if self._open is not None:
                    events.append(self._delta(text))
        return events

    def close(self) -> list[Event]:
        """The events that end the open block, if there is one."""
        block, self._open = self._open, None
        if block is None:
            return []
        event = {"type": "content_block_stop", "index": len(self.blocks)}
        text, kind = "".join(self._parts), block["type"]
        self.blocks.append(
            block | ({"input": complete_members(text)} if kind == "tool_use" else {kind: text})
        )
        return [event]

    def _text(self, kind: str, text: str) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open["type"] != kind:
            events += [*self.close(), self._begin(_STARTS[kind])]
        return [*events, self._delta(text)]

    def _begin(self, block: dict[str, Any]) -> Event:
        self._open, self._parts = block, []
        return {"type": "content_block_start", "index": len(self.blocks), "content_block": block}

    def _delta(self, text: str) -> Event:
        assert self._open is not None
        self._parts.append(text)
        kind = self._open["type"]
        delta = {"type": _DELTAS[kind], _FIELDS[kind]: text}
        return {"type": "content_block_delta", "index": len(self.blocks), "delta": delta}
