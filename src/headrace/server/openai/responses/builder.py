"""Builds a response: its output items, and the events of a stream."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from headrace.server.http.errors import ErrorDetail
from headrace.server.http.json_parts import JsonList
from headrace.server.openai.choices import CompletionTokensDetails, Explanation, PromptTokensDetails
from headrace.server.requests.logprobs import ChatToken
from headrace.text.tools.json_text import is_closed
from headrace.text.tools.pieces import CallArguments, CallBegins, Content, Piece, Reasoning

Event = dict[str, Any]

Status = Literal["completed", "incomplete", "failed", "in_progress"]


class ResponsesUsage(TypedDict):
    input_tokens: int
    input_tokens_details: PromptTokensDetails
    output_tokens: int
    output_tokens_details: CompletionTokensDetails
    total_tokens: int
    headrace: NotRequired[Explanation]


class ResponsesHead(TypedDict):
    """The fields of a response that are known before there is output."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    metadata: dict[str, Any]
    max_output_tokens: int | None
    parallel_tool_calls: bool
    previous_response_id: str | None
    background: bool
    reasoning: dict[str, str | None]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | None
    warnings: NotRequired[list[str]]


class ResponsesAnswer(ResponsesHead):
    """OpenAI's response object; `output` holds messages, reasoning and calls of functions."""

    status: Status
    output: list[dict[str, Any]]
    usage: ResponsesUsage | None


_LAST_STATUS: dict[str, Status] = {"length": "incomplete", "stop": "completed"}


class ResponseBuilder:
    """Consumes the pieces of a reply in order. `response` is the answer so far; events are numbered from 0.

    response: fields of the answer other than status, output and usage.
    new_call_id: makes the ids of calls.
    """

    def __init__(self, response: ResponsesHead, new_call_id: Callable[[], str]) -> None:
        self.response: ResponsesAnswer = {**response, "status": "in_progress", "output": [], "usage": None}
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
                    call = {"call_id": self._new_call_id(), "name": name, "arguments": ""}
                    events += self._begin(_Item("function_call", "fc", **call))
                case CallArguments(_, text) if self._open is not None:
                    self._open.parts.append(text)
                    events.append(self._event("function_call_arguments.delta", delta=text))
        return events

    def finish(self, reason: str | None, usage: ResponsesUsage) -> list[Event]:
        """The last events; `reason` is the engine's finish reason."""
        status = _LAST_STATUS.get(reason or "", "completed")
        events = [] if self._open or self._items else self._text("message", "")
        events += self._close(status)
        self.response.update({"status": status, "usage": usage, "output": self._items})
        if status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        return [*events, self._of_response(f"response.{status}")]

    def fail(self, code: str, message: str) -> list[Event]:
        """The last event if the engine fails; complete items remain."""
        error = {"code": code, "message": message}
        self.response.update({"status": "failed", "error": error, "output": self._items})
        return [self._of_response("response.failed")]

    def error(self, error: ErrorDetail) -> Event:
        """The last event if the server fails."""
        return self._numbered(
            "error", {"code": error["code"], "message": error["message"], "param": error["param"]}
        )

    # ---- Items ----

    def _text(self, kind: str, text: str, logprobs: Sequence[Any] = ()) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.kind != kind:
            events += self._close("completed")
            events += self._begin(_Item.text(kind))
        item = self._open
        assert item is not None
        item.parts.append(text)
        item.logprobs.extend(logprobs)
        if text:
            more = {"logprobs": list(logprobs)} if kind == "message" else {}
            events.append(self._event(f"{item.part_type}.delta", delta=text, content_index=0, **more))
        return events

    def _begin(self, item: _Item) -> list[Event]:
        self._open = item
        events = [self._event("output_item.added", item=item.begun())]
        if not item.is_call:
            events.append(self._event("content_part.added", content_index=0, part=item.part("")))
        return events

    def _close(self, status: str) -> list[Event]:
        item = self._open
        if item is None:
            return []
        text, done = "".join(item.parts), item.done(status)
        if not item.is_call:
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


class _Item:
    """An output item in progress: a message, reasoning, or a function call. `fields` of the item beside its text."""

    def __init__(self, kind: str, prefix: str, **fields: Any) -> None:
        self.kind = kind
        self.id = f"{prefix}_{uuid.uuid4().hex}"
        self.is_call = kind == "function_call"
        self.part_type = "output_text" if kind == "message" else "reasoning_text"
        self.parts: list[str] = []
        self.logprobs = JsonList[ChatToken]()
        self._begun = {"id": self.id, "type": kind, "status": "in_progress"} | fields

    @classmethod
    def text(cls, kind: str) -> _Item:
        if kind == "message":
            return cls(kind, "msg", content=[], role="assistant")
        return cls(kind, "rs", content=[], summary=[])

    def begun(self) -> dict[str, Any]:
        return dict(self._begun)

    def part(self, text: str) -> dict[str, Any]:
        more = {"annotations": [], "logprobs": self.shown_logprobs} if self.kind == "message" else {}
        return {"type": self.part_type, "text": text} | more

    @property
    def shown_logprobs(self) -> Any:
        """For `json_parts`; a new item has a plain empty list, as the JsonList would be written with later entries."""
        return self.logprobs if self.logprobs.size else []

    def done(self, status: str) -> dict[str, Any]:
        text = "".join(self.parts)
        if not self.is_call:
            return self._begun | {"status": status, "content": [self.part(text)]}
        return self._begun | {"status": status if is_closed(text) else "incomplete", "arguments": text}
