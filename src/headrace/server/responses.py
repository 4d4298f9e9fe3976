"""POST /v1/responses: text, reasoning and calls of functions, whole or as events. Nothing is stored."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from headrace.errors import HeadraceError, InvalidParams
from headrace.server.choices import usage
from headrace.server.disconnect import while_connected
from headrace.server.events import EventStream, EventWriter, event, event_parts, failure_body
from headrace.server.job import Job
from headrace.server.json_parts import json_response
from headrace.server.logprobs import chat_logprobs
from headrace.server.prompts import check_length, encode_chat
from headrace.server.reply import Reading, Reply
from headrace.server.response_builder import Event, ResponseBuilder
from headrace.server.response_input import chat_messages
from headrace.server.response_schemas import ResponsesRequest
from headrace.server.service import Service, service_of
from headrace.serving.completion import Delta
from headrace.serving.source import arrivals
from headrace.text.tool_choice import checked_tool_choice
from headrace.text.tools import Tool, checked_tools

router = APIRouter()


@router.post("/v1/responses")
async def responses(
    body: ResponsesRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    model = service.model(body.model)
    body.check()
    tools = body.tool_use
    params = body.sampling
    messages = chat_messages(body.input, body.instructions)
    prompt = await encode_chat(service, messages, True, body.template_variables, tools.tools)
    check_length(service, [prompt], params.max_tokens)
    reading = Reading.of(service, tools, prompt.text or "", params)
    params = reading.held(service, params)
    described = _described(body, model)
    job = await while_connected(
        request.receive, Job.start(service, "resp", [prompt], params, body, reading.visible)
    )
    reply = Reply(reading)
    builder = ResponseBuilder({"id": job.name.replace("-", "_", 1)} | described, reply.new_call_id)
    events = _Events(service, job, body, reply, builder)
    if body.stream:
        return EventStream(job, events, job.cancel)
    builder.begin()
    await while_connected(request.receive, _drained(events, job))
    return await json_response(builder.response)


class _Events(EventWriter[tuple[int, Delta]]):
    """The answer as it grows; events carry their `type` as their name, and no [DONE] ends them."""

    def __init__(
        self, service: Service, job: Job, body: ResponsesRequest, reply: Reply, builder: ResponseBuilder
    ) -> None:
        self._service = service
        self._job = job
        self._body = body
        self._reply = reply
        self._builder = builder
        self._reason: str | None = None
        self._waiting: list[Any] = []  # log-probabilities of tokens whose text is not known yet

    def added(self, delta: Delta) -> list[Event]:
        """What an addition means."""
        pieces = self._reply.take(delta)
        if self._body.logprobs and delta.logprobs:
            # Kept until their text is known: a token may be the middle of a character.
            self._waiting += chat_logprobs(delta.logprobs, self._service.tokenizer)["content"]
        events = self._builder.add(pieces, self._waiting)
        if pieces:
            self._waiting = []
        self._reason = delta.finish_reason or self._reason
        return events

    def finished(self) -> list[Event]:
        """The answer is complete."""
        return self._builder.finish(self._reason, _usage(self._job, self._reply))

    def begin(self) -> bytes:
        return _named(self._builder.begin())

    def write(self, item: tuple[int, Delta]) -> bytes:
        return _named(self.added(item[1]))

    def end(self) -> Iterable[bytes]:
        for each in self.finished():
            yield b"event: %b\n" % each["type"].encode()
            yield from event_parts(each)

    def fail(self, error: Exception) -> bytes:
        told = failure_body(error)["error"]
        if not isinstance(error, HeadraceError):
            return _named([told | {"type": "error"}])
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        return _named(self._builder.fail(code, told["message"]))


def _named(events: Sequence[Event]) -> bytes:
    return b"".join(b"event: %b\n%b" % (each["type"].encode(), event(each)) for each in events)


async def _drained(events: _Events, job: Job) -> None:
    """Read an answer that is sent as a whole."""
    try:
        async for items in arrivals(job):
            for _, delta in items:
                events.added(delta)
        events.finished()
    finally:
        job.cancel()


def _described(body: ResponsesRequest, model: str) -> dict[str, Any]:
    """What an answer says beside its output: the request, with the defaults filled in.

    Raises InvalidParams for what could not be written into an answer.
    """
    text = body.text
    reasoning = body.reasoning
    described = {
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "metadata": body.metadata or {},
        "max_output_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "background": False,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"} if text is None or text.format is None else text.format},
        "tool_choice": checked_tool_choice(body.tool_choice).described,
        "tools": [_flat(tool) for tool in checked_tools(body.tools)],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }
    try:
        json.dumps(described, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidParams(
            "the request holds half of a surrogate pair, an infinite number, or lists without end"
        ) from error
    return described


def _flat(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "strict": tool.strict} | function


def _usage(job: Job, reply: Reply) -> dict[str, Any]:
    counted = usage(job)
    explained = {name: counted[name] for name in ("headrace",) if name in counted}
    return explained | {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": counted["prompt_tokens_details"],
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        "total_tokens": counted["total_tokens"],
    }
