"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from headrace.core.types import TokenLogprobs
from headrace.server.choices import UsageSoFar, gathered, head, shows, usage
from headrace.server.chunk_template import HOLE, ChunkTemplate
from headrace.server.disconnect import while_connected
from headrace.server.echo import TextLogprobs, echoed
from headrace.server.events import Chunk, EventStream
from headrace.server.job import Job
from headrace.server.prompts import Encoded, check_length, encode_prompts
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
    prompts = await encode_prompts(service, body.prompt, body.add_special_tokens is not False)
    check_length(service, prompts, params.max_tokens)
    job = await Job.start(service, "cmpl", prompts, params, body)
    texts = _Texts(service, body, prompts)
    if body.stream:
        return EventStream(_chunks(texts, job, model, body), job.cancel)
    choices = await while_connected(request.receive, gathered(job, len(prompts) * params.n))
    answer = head(_KIND, job, model)
    answer["choices"] = [
        {
            "index": choice.index,
            "text": texts.front(choice.index) + "".join(choice.text),
            "logprobs": texts.logprobs(choice.index).take(choice.prompt_logprobs, choice.logprobs)
            if body.logprobs is not None
            else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        for choice in choices
    ]
    answer["usage"] = usage(job)
    return JSONResponse(answer)


class _Texts:
    """What stands in front of each choice's text, and the log-probabilities of both."""

    def __init__(self, service: Service, body: CompletionRequest, prompts: Sequence[Encoded]) -> None:
        self._tokenizer = service.tokenizer
        self._skip = body.skip_special_tokens is not False
        self._echo = bool(body.echo)
        self._n = body.n or 1
        self.prompts = prompts

    def front(self, index: int) -> str:
        return echoed(self.prompts[index // self._n], self._tokenizer, self._skip) if self._echo else ""

    def logprobs(self, index: int) -> TextLogprobs:
        prompt = self.prompts[index // self._n] if self._echo else None
        return TextLogprobs(self._tokenizer, self._skip, prompt)


async def _chunks(
    texts: _Texts, job: Job, model: str, body: CompletionRequest
) -> AsyncIterator[Chunk | bytes]:
    common: dict[str, Any] = head(_KIND, job, model)
    if body.streamed_usage:
        common["usage"] = None
    so_far = UsageSoFar(sum(len(prompt.ids) for prompt in texts.prompts))
    logprobs: dict[int, TextLogprobs] = {}  # of choices that have begun
    scored: dict[int, list[TokenLogprobs]] = {}  # prompt tokens of choices that have not
    plain = body.logprobs is None and not body.continuous_usage
    templates: dict[int, ChunkTemplate] = {}
    async for index, delta in job.deltas():
        if index in templates and delta.text and delta.finish_reason is None:  # as nearly always
            yield templates[index].event(delta.text)
            continue
        counts = so_far.add(delta)
        if delta.prompt_logprobs:
            scored.setdefault(index, []).extend(delta.prompt_logprobs)
        if not shows(delta):
            continue
        front = ""
        if index not in logprobs:
            logprobs[index], front = texts.logprobs(index), texts.front(index)
        prompt = scored.pop(index, ())
        choice = {
            "index": index,
            "text": front + delta.text,
            "logprobs": None if body.logprobs is None else logprobs[index].take(prompt, delta.logprobs),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        chunk = common | {"choices": [choice]}
        if body.continuous_usage:
            chunk["usage"] = counts
        yield chunk
        if plain and delta.finish_reason is None:
            choice["text"] = HOLE
            templates[index] = ChunkTemplate(chunk)
    if body.streamed_usage:
        yield common | {"choices": [], "usage": usage(job)}
