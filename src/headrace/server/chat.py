"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from headrace.server.choices import gathered, head, shows, usage
from headrace.server.disconnect import while_connected
from headrace.server.events import Chunk, EventStream
from headrace.server.job import Job
from headrace.server.logprobs import chat_logprobs
from headrace.server.prompts import check_length, encode_chat
from headrace.server.schemas import ChatRequest
from headrace.server.service import Service, service_of

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(
    body: ChatRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    model = service.model(body.model)
    body.check()
    params = body.sampling
    prompt = await encode_chat(
        service, body.messages, body.add_generation_prompt is not False, body.chat_template_kwargs or {}
    )
    check_length(service, [prompt], params.max_tokens)
    job = await Job.start(service, "chatcmpl", [prompt], params, body)
    if body.stream:
        return EventStream(_chunks(service, job, model, body), job.cancel)
    choices = await while_connected(request.receive, gathered(job, params.n))
    answer = head("chat.completion", job, model)
    answer["choices"] = [
        {
            "index": choice.index,
            "message": {"role": "assistant", "content": "".join(choice.text)},
            "logprobs": chat_logprobs(choice.logprobs, service.tokenizer) if body.logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        for choice in choices
    ]
    answer["usage"] = usage(job.results)
    return JSONResponse(answer)


async def _chunks(service: Service, job: Job, model: str, body: ChatRequest) -> AsyncIterator[Chunk]:
    common: dict[str, Any] = head("chat.completion.chunk", job, model)
    if body.streamed_usage:
        common["usage"] = None
    begun: set[int] = set()
    async for index, delta in job.deltas():
        if not shows(delta):
            continue
        if index not in begun:
            # Not before there is a token: callers take the first chunk for the first token's time.
            begun.add(index)
            yield common | {"choices": [_choice(index, {"role": "assistant", "content": ""})]}
        logprobs = chat_logprobs(delta.logprobs, service.tokenizer) if body.logprobs else None
        content = {"content": delta.text} if delta.text else {}
        yield common | {
            "choices": [
                _choice(index, content, logprobs, delta.finish_reason) | {"stop_reason": delta.stop_reason}
            ]
        }
    if body.streamed_usage:
        yield common | {"choices": [], "usage": usage(job.results)}


def _choice(
    index: int,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
