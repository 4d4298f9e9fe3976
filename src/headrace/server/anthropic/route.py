"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from headrace.errors import HeadraceError, RequestError
from headrace.server.anthropic.answers import Event, MessageBuilder, messages_error
from headrace.server.anthropic.conversation import chat_messages
from headrace.server.anthropic.schemas import CacheMark, CountTokensRequest, MessagesRequest, cache_marks
from headrace.server.http.events import EventStream, EventWriter, failure_body, named_events
from headrace.server.http.json_parts import json_response
from headrace.server.http.pace import while_connected
from headrace.server.requests.job import Job
from headrace.server.requests.prompts import Encoded, are_many, check_length, encode_chat, read_messages
from headrace.server.requests.record import current
from headrace.server.requests.reply import Reading, Reply
from headrace.server.requests.service import Service, service_of
from headrace.serving.requests.completion import Delta

router = APIRouter()


class MessagesUsage(TypedDict):
    """Input tokens are those that were neither read from the cache nor pinned in it."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(TypedDict):
    """Anthropic's message; `content` holds blocks of text, thinking and tool_use."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Annotated[
        str | None,
        WithJsonSchema({"type": "string", "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]}),
    ]
    stop_sequence: str | None
    usage: MessagesUsage


class CountTokensAnswer(TypedDict):
    input_tokens: int


@router.post("/v1/messages")
async def messages(
    body: MessagesRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    model = service.model(body.model)
    tools, params = body.tool_use, body.sampling
    prompt, marks = await _encoded(service, body)
    check_length(service, [prompt], params.max_tokens)
    marked = await _tokens_of(service, body, marks[-1], prompt) if marks else 0
    reading, params = Reading.of(service, tools, prompt, params)
    pin = (marked, max(mark.ttl_s for mark in marks)) if marked else None
    stream = bool(body.stream)
    starting = Job.start(service, "msg", [prompt], params, body, stream, reading.visible, pin=pin)
    job = await while_connected(request.receive, starting)
    reply = Reply(reading)
    events = _Events(job, model, reply, MessageBuilder(reply.new_call_id, body.thinks), len(prompt.ids))
    if body.stream:
        return EventStream(job, events, job.cancel)
    await job.read(request.receive, events.add)
    events.finish()
    return await json_response(events.message(), job.held)


@router.post("/v1/messages/count_tokens")
async def count_tokens(
    body: CountTokensRequest, service: Annotated[Service, Depends(service_of)]
) -> Response:
    """The number of tokens of the request's prompt."""
    service.model(body.model)
    prompt, _ = await _encoded(service, body)
    answer: CountTokensAnswer = {"input_tokens": len(prompt.ids)}
    return JSONResponse(answer)


async def _encoded(service: Service, body: CountTokensRequest) -> tuple[Encoded, list[CacheMark]]:
    """The conversation as the model sees it, and its `cache_control` marks. Raises RequestError."""

    def read() -> tuple[list[dict[str, Any]], list[CacheMark]]:
        chat = chat_messages(body.messages, body.system)
        body.form  # noqa: B018  # checked for count_tokens, too
        return chat, cache_marks(body.messages, body.system, body.tools, body.cache_control)

    tools = body.tool_use.tools
    chat, marks = await read_messages(service, are_many(body.messages), read)
    continued = chat[-1]["role"] == "assistant"
    prompt = await encode_chat(
        service, chat, not continued, body.template_variables, tools, continue_final_message=continued
    )
    return prompt, marks


async def _tokens_of(service: Service, body: MessagesRequest, mark: CacheMark, prompt: Encoded) -> int:
    """The length of the prefix that the prompt shares with the prompt of the conversation up to a mark. For a mark on
    tools or the system message, that conversation continues with another user message."""
    if mark.messages is body.messages:
        return len(prompt.ids)
    cut = mark.messages or [{"role": "user", "content": "?"}]
    chat = await read_messages(service, are_many(cut), lambda: chat_messages(cut, mark.system))
    try:
        short = await encode_chat(service, chat, False, body.template_variables, body.tool_use.tools)
    except RequestError:
        return 0  # the template refuses a conversation that ends there
    pairs = enumerate(zip(prompt.ids, short.ids, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(prompt.ids), len(short.ids)))


class _Events(EventWriter[tuple[int, Delta]]):
    """The answer as it grows. The name of an event is its `type`; there is no [DONE]."""

    def __init__(
        self, job: Job, model: str, reply: Reply, builder: MessageBuilder, prompt_tokens: int
    ) -> None:
        self._job = job
        self._model = model
        self._reply = reply
        self._builder = builder
        self._prompt_tokens = prompt_tokens
        record = current()
        self._request_id = None if record is None else record.request_id
        self._begun = False
        self._output_tokens = 0
        self._reason: str | None = None
        self._stopped_by: int | str | None = None

    def add(self, index: int, delta: Delta) -> list[Event]:
        """The events of an addition."""
        self._output_tokens += len(delta.token_ids)
        events = self._builder.add(self._reply.take(delta))
        if delta.finish_reason is not None:
            self._reason, self._stopped_by = delta.finish_reason, delta.stop_reason
        return events

    def message(self) -> MessageAnswer:
        """The answer so far."""
        reason, by = self._stop()
        return {
            "id": self._job.name.replace("-", "_", 1),
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": self._builder.blocks,
            "stop_reason": reason,
            "stop_sequence": by,
            "usage": self._usage(),
        }

    def finish(self) -> list[Event]:
        """The last events."""
        events = self._builder.close()
        reason, by = self._stop()
        delta = {"stop_reason": reason, "stop_sequence": by}
        return [
            *events,
            {"type": "message_delta", "delta": delta, "usage": self._usage()},
            {"type": "message_stop"},
        ]

    def write(self, item: tuple[int, Delta]) -> bytes:
        begin: list[Event] = []
        if not self._begun:
            # Sent with the first token, when the number of cached tokens is known.
            self._begun = True
            begin = [{"type": "message_start", "message": self.message()}, {"type": "ping"}]
        return named_events(begin + self.add(*item))

    def end(self) -> Iterable[bytes]:
        return (named_events(self.finish()),)

    def fail(self, error: Exception) -> bytes:
        status = error.status if isinstance(error, HeadraceError) else 500
        return named_events([{**messages_error(status, failure_body(error), self._request_id)}])

    def _stop(self) -> tuple[str | None, str | None]:
        """(stop_reason, stop_sequence)."""
        if self._reason is None:
            return None, None
        if self._reason == "length":
            return "max_tokens", None
        if isinstance(self._stopped_by, str):
            return "stop_sequence", self._stopped_by
        return "tool_use" if self._reply.called else "end_turn", None

    def _usage(self) -> MessagesUsage:
        read = self._job.cached_tokens
        created = max(0, self._job.pinned_tokens - read)
        return {
            "input_tokens": self._prompt_tokens - read - created,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": read,
            "output_tokens": self._output_tokens,
        }
