"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from headrace.core.types import TokenLogprobs
from headrace.server.choices import UsageSoFar, gathered, head, shows, usage
from headrace.server.chunk_template import HOLE, ChunkTemplate
from headrace.server.disconnect import while_connected
from headrace.server.echo import TextLogprobs, echoed
from headrace.server.events import DONE, EventStream, EventWriter, event
from headrace.server.job import Job
from headrace.server.prompts import Encoded, check_length, encode_prompts
from headrace.server.schemas import CompletionRequest
from headrace.server.service import Service, service_of
from headrace.serving.completion import Delta

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
        return EventStream(job, _Events(texts, job, model, body), job.cancel)
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


class _Events(EventWriter[tuple[int, Delta]]):
    """The chunks of a streamed answer."""

    def __init__(self, texts: _Texts, job: Job, model: str, body: CompletionRequest) -> None:
        self._texts = texts
        self._job = job
        self._body = body
        self._common: dict[str, Any] = head(_KIND, job, model)
        if body.streamed_usage:
            self._common["usage"] = None
        self._so_far = UsageSoFar(sum(len(prompt.ids) for prompt in texts.prompts))
        self._logprobs: dict[int, TextLogprobs] = {}  # of choices that have begun
        self._scored: dict[int, list[TokenLogprobs]] = {}  # prompt tokens of choices that have not
        self._plain = body.logprobs is None and not body.continuous_usage
        self._templates: dict[int, ChunkTemplate] = {}

    def write(self, item: tuple[int, Delta]) -> bytes:
        index, delta = item
        if index in self._templates and delta.text and delta.finish_reason is None:  # as nearly always
            return self._templates[index].event(delta.text)
        counts = self._so_far.add(delta)
        if delta.prompt_logprobs:
            self._scored.setdefault(index, []).extend(delta.prompt_logprobs)
        if not shows(delta):
            return b""
        front = ""
        if index not in self._logprobs:
            self._logprobs[index], front = self._texts.logprobs(index), self._texts.front(index)
        prompt = self._scored.pop(index, ())
        logprobs = None if self._body.logprobs is None else self._logprobs[index].take(prompt, delta.logprobs)
        choice = {
            "index": index,
            "text": front + delta.text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        chunk = self._common | {"choices": [choice]}
        if self._body.continuous_usage:
            chunk["usage"] = counts
        written = event(chunk)
        if self._plain and delta.finish_reason is None:
            choice["text"] = HOLE
            self._templates[index] = ChunkTemplate(chunk)
        return written

    def end(self) -> bytes:
        if not self._body.streamed_usage:
            return DONE
        return event(self._common | {"choices": [], "usage": usage(self._job)}) + DONE
