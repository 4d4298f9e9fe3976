"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from headrace.server.choices import gathered, head, shows, usage
from headrace.server.disconnect import while_connected
from headrace.server.events import Chunk, EventStream
from headrace.server.job import Job
from headrace.server.logprobs import completion_logprobs
from headrace.server.prompts import check_length, encode_prompts
from headrace.server.schemas import CompletionRequest
from headrace.server.service import Service, service_of

router = APIRouter()

_KIND = "text_completion"


@router.post("/v1/completions")
async def completions(
    body: CompletionRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    model = service.model(body.model)
    body.check()
    params = body.sampling
    prompts = await encode_prompts(service, body.prompt)
    check_length(service, prompts, params.max_tokens)
    job = await Job.start(service, "cmpl", prompts, params, body)
    if body.stream:
        return EventStream(_chunks(service, job, model, body), job.cancel)
    choices = await while_connected(request.receive, gathered(job, len(prompts) * params.n))
    answer = head(_KIND, job, model)
    answer["choices"] = [
        {
            "index": choice.index,
            "text": "".join(choice.text),
            "logprobs": None
            if params.logprobs is None
            else completion_logprobs(choice.logprobs, service.tokenizer, 0)[0],
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        for choice in choices
    ]
    answer["usage"] = usage(job.results)
    return JSONResponse(answer)


async def _chunks(service: Service, job: Job, model: str, body: CompletionRequest) -> AsyncIterator[Chunk]:
    common: dict[str, Any] = head(_KIND, job, model)
    if body.streamed_usage:
        common["usage"] = None
    offsets: dict[int, int] = {}
    async for index, delta in job.deltas():
        if not shows(delta):
            continue
        logprobs = None
        if body.logprobs is not None:
            logprobs, offsets[index] = completion_logprobs(
                delta.logprobs, service.tokenizer, offsets.get(index, 0)
            )
        yield common | {
            "choices": [
                {
                    "index": index,
                    "text": delta.text,
                    "logprobs": logprobs,
                    "finish_reason": delta.finish_reason,
                    "stop_reason": delta.stop_reason,
                }
            ]
        }
    if body.streamed_usage:
        yield common | {"choices": [], "usage": usage(job.results)}
