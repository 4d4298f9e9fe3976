"""POST /v1/responses: text, reasoning and calls of functions, whole or as events. Nothing is stored."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from headrace.errors import HeadraceError, InvalidParams
from headrace.server.choices import usage
from headrace.server.disconnect import while_connected
from headrace.server.errors import MAX_MESSAGE_CHARS
from headrace.server.events import Chunk, EventStream
from headrace.server.job import Job
from headrace.server.logprobs import chat_logprobs
from headrace.server.prompts import check_length, encode_chat
from headrace.server.reply import Reading, Reply, with_forced_call, with_strict_calls
from headrace.server.response_builder import Event, ResponseBuilder
from headrace.server.response_input import chat_messages
from headrace.server.response_schemas import ResponsesRequest
from headrace.server.service import Service, service_of
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
    params = with_forced_call(service, body.sampling, tools)
    messages = chat_messages(body.input, body.instructions)
    prompt = await encode_chat(service, messages, True, body.template_variables, tools.tools)
    check_length(service, [prompt], params.max_tokens)
    reading = Reading.of(service, tools, prompt.text or "", params)
    params = with_strict_calls(service, params, reading)
    described = _described(body, model)
    job = await Job.start(service, "resp", [prompt], params, body, reading.visible)
    reply = Reply(reading)
    builder = ResponseBuilder({"id": job.name.replace("-", "_", 1)} | described, reply.new_call_id)
    events = _events(service, job, body, reply, builder)
    if body.stream:
        return EventStream(_told(events, builder), job.cancel, named=True)
    await while_connected(request.receive, _drained(events, job))
    return JSONResponse(builder.response)


async def _events(
    service: Service, job: Job, body: ResponsesRequest, reply: Reply, builder: ResponseBuilder
) -> AsyncIterator[Event]:
    for event in builder.begin():
        yield event
    reason = None
    waiting: list[Any] = []
    async for _, delta in job.deltas():
        pieces = reply.take(delta)
        if body.logprobs and delta.logprobs:
            # Kept until their text is known: a token may be the middle of a character.
            waiting += chat_logprobs(delta.logprobs, service.tokenizer)["content"]
        for event in builder.add(pieces, waiting):
            yield event
        if pieces:
            waiting = []
        reason = delta.finish_reason or reason
    for event in builder.finish(reason, _usage(job, reply)):
        yield event


async def _drained(events: AsyncIterator[Event], job: Job) -> None:
    try:
        async for _ in events:
            pass
    finally:
        job.cancel()


async def _told(events: AsyncIterator[Event], builder: ResponseBuilder) -> AsyncIterator[Chunk]:
    """The events, whose last one says so where the engine fails."""
    try:
        async for event in events:
            yield event
    except HeadraceError as error:
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        for event in builder.fail(code, str(error)[:MAX_MESSAGE_CHARS]):
            yield event


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
