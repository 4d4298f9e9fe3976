"""A response as it grows: its output items, and the events that tell a stream's reader of each step."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from headrace.server.http.json_parts import JsonList
from headrace.text.tools.json_text import is_closed
from headrace.text.tools.pieces import CallArguments, CallBegins, Content, Piece, Reasoning

Event = dict[str, Any]

_LAST_STATUS = {"length": "incomplete", "stop": "completed"}


class ResponseBuilder:
    """Takes pieces of a reply in order. `response` is the answer so far; events are numbered from 0.

    response: what the answer says beside status, output and usage.
    new_call_id: makes the ids of calls.
    """

    def __init__(self, response: dict[str, Any], new_call_id: Any) -> None:
        self.response = response | {"status": "in_progress", "output": [], "usage": None}
        self._new_call_id = new_call_id
        self._number = 0
        self._open: _Item | None = None
        self._items: list[dict[str, Any]] = []

    def begin(self) -> list[Event]:
        return [self._of_response("response.created"), self._of_response("response.in_progress")]

    def add(self, pieces: Sequence[Piece], logprobs: Sequence[Any] = ()) -> list[Event]:
        """`logprobs` of the tokens that `pieces` were read from."""
        events: list[Event] = []
        for piece in pieces:
            match piece:
                case Content(text):
                    events += self._text("message", text, logprobs)
                    logprobs = ()
                case Reasoning(text):
                    events += self._text("reasoning", text)
                case CallBegins(_, name):
                    events += self._close("completed")
                    events += self._begin(_Call(name, self._new_call_id()))
                case CallArguments(_, text) if self._open is not None:
                    self._open.parts.append(text)
                    events.append(self._event("function_call_arguments.delta", delta=text))
        return events

    def finish(self, reason: str | None, usage: dict[str, Any]) -> list[Event]:
        """The end; `reason` as the engine gives it."""
        status = _LAST_STATUS.get(reason or "", "completed")
        events = [] if self._open or self._items else self._text("message", "")
        events += self._close(status)
        self.response |= {"status": status, "usage": usage, "output": self._items}
        if status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        return [*events, self._of_response(f"response.{status}")]

    def fail(self, code: str, message: str) -> list[Event]:
        """The end, where the engine failed: what was complete by then remains."""
        error = {"code": code, "message": message}
        self.response |= {"status": "failed", "error": error, "output": self._items}
        return [self._of_response("response.failed")]

    def error(self, fields: dict[str, Any]) -> Event:
        """The end, where the server itself failed; `fields` of the error's body."""
        return self._numbered("error", {name: fields[name] for name in ("code", "message", "param")})

    # ---- Items ----

    def _text(self, kind: str, text: str, logprobs: Sequence[Any] = ()) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.kind != kind:
            events += self._close("completed")
            events += self._begin(_Text(kind))
        item = self._open
        assert isinstance(item, _Text)
        item.parts.append(text)
        item.logprobs.extend(logprobs)
        if text:
            more = {"logprobs": list(logprobs)} if kind == "message" else {}
            events.append(self._event(f"{item.part_type}.delta", delta=text, content_index=0, **more))
        return events

    def _begin(self, item: _Item) -> list[Event]:
        self._open = item
        events = [self._event("output_item.added", item=item.begun())]
        if isinstance(item, _Text):
            events.append(self._event("content_part.added", content_index=0, part=item.part("")))
        return events

    def _close(self, status: str) -> list[Event]:
        item = self._open
        if item is None:
            return []
        text, done = "".join(item.parts), item.done(status)
        if isinstance(item, _Text):
            more = {"logprobs": item.shown_logprobs} if item.kind == "message" else {}
            events = [
                self._event(f"{item.part_type}.done", text=text, content_index=0, **more),
                self._event("content_part.done", content_index=0, part=item.part(text)),
            ]
        else:
            events = [self._event("function_call_arguments.done", arguments=text, name=done["name"])]
        events.append(self._event("output_item.done", item=done))
        self._items.append(done)
        self._open = None
        return events

    # ---- Events ----

    def _event(self, kind: str, **fields: Any) -> Event:
        """An event about the open item."""
        assert self._open is not None
        where: dict[str, Any] = {"output_index": len(self._items)}
        if "item" not in fields:
            where["item_id"] = self._open.id
        return self._numbered(f"response.{kind}", where | fields)

    def _of_response(self, kind: str) -> Event:
        return self._numbered(kind, {"response": dict(self.response)})

    def _numbered(self, kind: str, fields: dict[str, Any]) -> Event:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number} | fields


class _Item(ABC):
    """An output item that is being said."""

    def __init__(self, kind: str, prefix: str) -> None:
        self.kind = kind
        self.id = f"{prefix}_{uuid.uuid4().hex}"
        self.parts: list[str] = []

    @abstractmethod
    def begun(self) -> dict[str, Any]: ...

    @abstractmethod
    def done(self, status: str) -> dict[str, Any]: ...


class _Text(_Item):
    def __init__(self, kind: str) -> None:
        super().__init__(kind, "msg" if kind == "message" else "rs")
        self.logprobs = JsonList()
        self.part_type = "output_text" if kind == "message" else "reasoning_text"

    def part(self, text: str) -> dict[str, Any]:
        more = {"annotations": [], "logprobs": self.shown_logprobs} if self.kind == "message" else {}
        return {"type": self.part_type, "text": text} | more

    @property
    def shown_logprobs(self) -> Any:
        """For `json_parts`. An item that begins has none, whatever it will have when that is written."""
        return self.logprobs if self.logprobs.size else []

    def begun(self) -> dict[str, Any]:
        more: dict[str, Any] = {"role": "assistant"} if self.kind == "message" else {"summary": []}
        return {"id": self.id, "type": self.kind, "status": "in_progress", "content": []} | more

    def done(self, status: str) -> dict[str, Any]:
        return self.begun() | {"status": status, "content": [self.part("".join(self.parts))]}


class _Call(_Item):
    def __init__(self, name: str, call_id: str) -> None:
        super().__init__("function_call", "fc")
        self._name = name
        self._call_id = call_id

    def begun(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": self.kind,
            "status": "in_progress",
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "",
        }

    def done(self, status: str) -> dict[str, Any]:
        arguments = "".join(self.parts)
        return self.begun() | {
            "status": status if is_closed(arguments) else "incomplete",
            "arguments": arguments,
        }
