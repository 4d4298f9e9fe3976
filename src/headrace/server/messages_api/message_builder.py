"""A reply as content blocks, and the events that tell a stream's reader of each step.

Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.text.reply.cut_json import complete_members
from headrace.text.reply.pieces import CallArguments, CallBegins, Content, Piece, Reasoning

Event = dict[str, Any]

_STARTS: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_FIELDS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
_DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


class MessageBuilder:
    """Takes pieces of a reply in order. `blocks` are complete ones.

    new_call_id: makes the ids of calls. thinks: thinking is shown.
    """

    def __init__(self, new_call_id: Callable[[], str], thinks: bool) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._new_call_id = new_call_id
        self._thinks = thinks
        self._open: dict[str, Any] | None = None
        self._parts: list[str] = []

    def add(self, pieces: Sequence[Piece]) -> list[Event]:
        """What an addition means, as events."""
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
        """End the open block, if there is one."""
        block, self._open = self._open, None
        if block is None:
            return []
        event = {"type": "content_block_stop", "index": len(self.blocks)}
        text = "".join(self._parts)
        kind = block["type"]
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
