"""POST, GET and DELETE /v1/responses: text, reasoning and function calls, whole or as events."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from typing_extensions import TypedDict

from headrace.errors import HeadraceError, InvalidParams
from headrace.server.http.events import EventStream, EventWriter, event_parts, failure_body, named_events
from headrace.server.http.json_parts import json_response
from headrace.server.http.pace import while_connected
from headrace.server.openai.choices import usage
from headrace.server.openai.responses.builder import Event, ResponseBuilder, ResponsesHead, ResponsesUsage
from headrace.server.openai.responses.conversation import Thread, chat_messages
from headrace.server.openai.responses.schemas import ResponsesRequest
from headrace.server.openai.responses.store import ResponseStore
from headrace.server.requests.job import Job
from headrace.server.requests.logprobs import chat_logprobs
from headrace.server.requests.prompts import (
    Encoded,
    Messages,
    check_length,
    encode_chat,
    encode_shortened,
    read_messages,
)
from headrace.server.requests.reply import Reading, Reply
from headrace.server.requests.service import Service, service_of
from headrace.serving.requests.completion import Delta
from headrace.text.tools.request import Tool, ToolUse, checked_tool_choice

router = APIRouter()

_log = logging.getLogger(__name__)


async def store_of(request: Request) -> ResponseStore:
    """The app's stored responses; a FastAPI dependency."""
    store: ResponseStore = request.app.state.responses
    return store


@router.post("/v1/responses")
async def responses(
    body: ResponsesRequest,
    request: Request,
    service: Annotated[Service, Depends(service_of)],
    store: Annotated[ResponseStore, Depends(store_of)],
) -> Response:
    model = service.model(body.model)
    body.check()
    thread = Thread.of(service, store, body)
    prompt = await _prompt(service, body, thread)
    described = _described(body, model, thread)  # checked before the work
    job, reading, strict = await while_connected(request.receive, _start(service, body, prompt))
    described["tools"] = [_flat(tool) for tool in body.functions(strict)]
    reply = Reply(reading)
    described["id"] = job.name.replace("-", "_", 1)
    builder = ResponseBuilder(described, reply.new_call_id)
    events = _Events(service, job, body, reply, builder, thread)
    if body.stream:
        return EventStream(job, events, job.cancel)
    builder.begin()
    await job.read(request.receive, events.add)
    events.finish()
    for _ in thread.keep(service, builder.response):
        await asyncio.sleep(0)
    return await json_response(builder.response, job.held)


async def _prompt(service: Service, body: ResponsesRequest, thread: Thread) -> Encoded:
    """The conversation as the model sees it. Raises RequestError."""
    tools, length = body.tool_use().tools, body.sampling.max_tokens

    def read() -> list[dict[str, Any]]:
        messages = chat_messages(thread.items(), body.instructions)
        thread.write()
        return messages

    messages = await read_messages(service, thread.is_long, read)

    async def encode(some: Messages) -> Encoded:
        return await encode_chat(service, some, True, body.template_variables, tools)

    if body.truncation == "auto":
        prompt = await encode_shortened(encode, messages, service.facts.max_model_len, length)
    else:
        prompt = await encode(messages)
    check_length(service, [prompt], length)
    return prompt


async def _start(service: Service, body: ResponsesRequest, prompt: Encoded) -> tuple[Job, Reading, bool]:
    """The job, how to parse it, and whether functions without `strict` are strict: they are, as in OpenAI's API,
    unless no grammar can follow their schemas."""

    async def attempt(tools: ToolUse) -> tuple[Job, Reading, bool]:
        reading, params = Reading.of(service, tools, prompt, body.sampling)
        stream = bool(body.stream)
        job = await Job.start(service, "resp", [prompt], params, body, stream, reading.visible)
        return job, reading, tools is strict

    strict, free = body.tool_use(), body.tool_use(strict=False)
    if strict == free or strict.forced:
        return await attempt(strict)
    try:
        return await attempt(strict)
    except InvalidParams:
        return await attempt(free)


class _Events(EventWriter[tuple[int, Delta]]):
    """The answer as it grows. The name of an event is its `type`; there is no [DONE]."""

    def __init__(
        self,
        service: Service,
        job: Job,
        body: ResponsesRequest,
        reply: Reply,
        builder: ResponseBuilder,
        thread: Thread,
    ) -> None:
        self._service = service
        self._job = job
        self._body = body
        self._reply = reply
        self._builder = builder
        self._thread = thread
        self._reason: str | None = None
        self._waiting: list[Any] = []  # log-probabilities of tokens whose text is incomplete

    def add(self, index: int, delta: Delta) -> list[Event]:
        """The events of an addition."""
        self._reason = delta.finish_reason or self._reason
        if not (self._body.logprobs and delta.logprobs):
            return self._builder.add(self._reply.take(delta))
        events: list[Event] = []
        for one in delta.by_token():  # each log-probability belongs to its token's text
            pieces = self._reply.take(one)
            # Kept until their text is complete: a token may be the middle of a character.
            self._waiting += chat_logprobs(one.logprobs, self._service.tokenizer)
            events += self._builder.add(pieces, self._waiting)
            if pieces:
                self._waiting = []
        return events

    def finish(self) -> list[Event]:
        """The last events."""
        counted = usage(self._job, self._body.explain)
        used: ResponsesUsage = {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": counted["prompt_tokens_details"],
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._reply.reasoning_tokens},
            "total_tokens": counted["total_tokens"],
        }
        if "headrace" in counted:
            used["headrace"] = counted["headrace"]
        return self._builder.finish(self._reason, used)

    def begin(self) -> bytes:
        return named_events(self._builder.begin())

    def write(self, item: tuple[int, Delta]) -> bytes:
        return named_events(self.add(*item))

    def end(self) -> Iterable[bytes]:
        events = self.finish()
        events[-1]["response"] = self._builder.response  # which `keep` may change
        for _ in self._thread.keep(self._service, self._builder.response):
            yield b""
        for each in events:
            yield b"event: %b\n" % each["type"].encode()
            yield from event_parts(each)

    def fail(self, error: Exception) -> bytes:
        body = failure_body(error)["error"]
        if not isinstance(error, HeadraceError):
            return named_events([self._builder.error(body)])
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        return named_events(self._builder.fail(code, body["message"]))


def _described(body: ResponsesRequest, model: str, thread: Thread) -> ResponsesHead:
    """The fields of an answer other than its id and output: the request, with defaults filled in.

    Raises InvalidParams for values that cannot be encoded.
    """
    text = body.text
    reasoning = body.reasoning
    described: ResponsesHead = {
        "id": "",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "metadata": body.metadata or {},
        "max_output_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "background": False,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        "store": thread.kept,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"} if text is None or text.format is None else text.format},
        "tool_choice": checked_tool_choice(body.tool_choice).described,
        "tools": [_flat(tool) for tool in body.functions(strict=True)],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }
    if body.hosted:
        described["warnings"] = [_ignored(kind) for kind in sorted(set(body.hosted))]
    try:
        json.dumps(described, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidParams(
            "the request holds half of a surrogate pair, an infinite number, or lists without end"
        ) from error
    return described


@functools.cache  # logged once for each type
def _ignored(kind: str) -> str:
    """The warning about a tool that this server does not run."""
    text = f"tools of the type {kind} are ignored: this server runs none, and calls functions only"
    _log.warning("a request to /v1/responses: %s", text)
    return text


def _flat(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "strict": tool.strict} | function


@router.get("/v1/responses/{response_id}")
async def stored_response(
    response_id: str,
    service: Annotated[Service, Depends(service_of)],
    store: Annotated[ResponseStore, Depends(store_of)],
    stream: bool = False,
) -> Response:
    """A stored response, as it was answered."""
    if stream:
        raise InvalidParams("stream is not supported: a stored response is complete")
    stored = store.get(service.caller.name, response_id)
    return Response(stored.response, media_type="application/json")


class ResponseDeleted(TypedDict):
    id: str
    object: Literal["response"]
    deleted: bool


@router.delete("/v1/responses/{response_id}")
async def delete_response(
    response_id: str,
    service: Annotated[Service, Depends(service_of)],
    store: Annotated[ResponseStore, Depends(store_of)],
) -> Response:
    """Delete a response. Later responses have a copy of its text in their own conversation."""
    store.delete(service.caller.name, response_id)
    answer: ResponseDeleted = {"id": response_id, "object": "response", "deleted": True}
    return JSONResponse(answer)
