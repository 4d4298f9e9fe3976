"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from headrace.server.http.events import EventStream, event, event_parts
from headrace.server.http.json_parts import JsonList, JsonNumbers, json_response
from headrace.server.http.pace import Slices, while_connected
from headrace.server.openai.choices import (
    HOLE,
    Choice,
    ChunkTemplate,
    ChunkWriter,
    Column,
    Text,
    UsageAnswer,
    token_ids,
    usage,
)
from headrace.server.openai.logprobs import PromptLogprobs, TextLogprobs, TextLogprobsAnswer, prompt_logprobs
from headrace.server.openai.schemas import CompletionRequest
from headrace.server.requests.job import Job
from headrace.server.requests.prompts import Encoded, check_length, encode_prompts, truncation
from headrace.server.requests.service import Service, service_of
from headrace.serving.requests.completion import Delta

router = APIRouter()

_FEW_TOKENS = 2000
"""Decoded on the event loop: a thread would cost more than the work."""

_CHOICES_A_TURN = 256


class TextChoice(TypedDict):
    """The last three if the request asks for them."""

    index: int
    text: str
    logprobs: TextLogprobsAnswer | None
    finish_reason: Annotated[str | None, WithJsonSchema({"type": "string", "enum": ["stop", "length"]})]
    stop_reason: int | str | None
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[JsonNumbers]
    token_ids: NotRequired[JsonList[int]]


class CompletionAnswer(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageAnswer


@router.post("/v1/completions")
async def completions(
    body: CompletionRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    model = service.model(body.model)
    body.check()
    params = body.sampling
    add_special_tokens = body.add_special_tokens is not False
    shortened = truncation(service, body, params.max_tokens)
    prompts = await encode_prompts(service, body.prompt, add_special_tokens, shortened)
    # Without `max_tokens` in the request, a completion may end at the context's length before the default length.
    check_length(service, prompts, None if body.max_tokens is None else params.max_tokens)
    parts = await _Parts.of(service, body, prompts)
    prompt_ids = params.n if body.return_token_ids else 0
    starting = Job.start(
        service, "cmpl", prompts, params, body, bool(body.stream), echo=bool(body.echo), prompt_ids=prompt_ids
    )
    job = await while_connected(request.receive, starting)
    if body.stream:
        return EventStream(job, _Chunks(parts, job, model, body), job.cancel)
    choices = [Choice(index, parts.columns(index)) for index in range(len(prompts) * params.n)]
    await job.read(request.receive, lambda index, delta: choices[index].add(delta))
    written: list[TextChoice] = []
    slices = Slices(_CHOICES_A_TURN)
    for choice in choices:
        if job.held is not None:
            job.held.take(len(parts.front(choice.index)))
        written.append(parts.written(choice))
        await slices.add(1)
    answer: CompletionAnswer = {
        "id": job.name,
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": written,
        "usage": usage(job, body.explain),
    }
    return await json_response(answer, job.held)


class _Parts:
    """What choices have beside their text: the echoed prompt before it (`fronts`, one a prompt), log-probabilities,
    and token ids (`ids`, one a prompt, if the answer contains them)."""

    def __init__(
        self,
        service: Service,
        body: CompletionRequest,
        prompts: Sequence[Encoded],
        fronts: Sequence[str] | None,
        ids: Sequence[JsonNumbers],
    ) -> None:
        self._tokenizer = service.tokenizer
        self._body = body
        self._fronts = fronts
        self._ids = ids
        self._n = body.n or 1
        self.prompts = prompts

    @classmethod
    async def of(cls, service: Service, body: CompletionRequest, prompts: Sequence[Encoded]) -> _Parts:
        fronts = await _echoed(service, body, prompts) if body.echo else None
        ids: list[JsonNumbers] = []
        if body.return_token_ids:
            slices = Slices(_CHOICES_A_TURN)
            for prompt in prompts:
                ids.append(await JsonNumbers.of(prompt.ids))
                await slices.add(1)
        return cls(service, body, prompts, fronts, ids)

    def front(self, index: int) -> str:
        return "" if self._fronts is None else self._fronts[index // self._n]

    def logprobs(self, index: int) -> TextLogprobs | None:
        """None if the request does not ask for them."""
        if self._body.logprobs is None:
            return None
        prompt, skip = self.prompts[index // self._n], self._body.skip_special_tokens is not False
        return TextLogprobs(self._tokenizer, skip, prompt, self._body.logprobs, self._fronts is not None)

    def columns(self, index: int) -> dict[str, Column]:
        """The fields of a whole answer's choice."""
        found: dict[str, Column] = {"text": Text()}
        logprobs = self.logprobs(index)
        if logprobs is not None:
            found["logprobs"] = logprobs
        if self._body.prompt_logprobs is not None:
            found["prompt_logprobs"] = prompt_logprobs(self._body.prompt_logprobs, self._tokenizer)
        if self._body.return_token_ids:
            found["token_ids"] = token_ids()
        return found

    def prompt_ids(self, index: int) -> JsonNumbers | None:
        """The prompt's token ids, if the request asks for them."""
        return self._ids[index // self._n] if self._ids else None

    def written(self, choice: Choice) -> TextChoice:
        """A choice of a whole answer."""
        made: TextChoice = {
            "index": choice.index,
            "text": self.front(choice.index) + choice.column("text"),
            "logprobs": choice.column("logprobs"),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._body.prompt_logprobs is not None:
            made["prompt_logprobs"] = choice.column("prompt_logprobs")
        ids = self.prompt_ids(choice.index)
        if ids is not None:
            made["prompt_token_ids"] = ids
            made["token_ids"] = choice.column("token_ids")
        return made


async def _echoed(service: Service, body: CompletionRequest, prompts: Sequence[Encoded]) -> list[str]:
    """Prompts as text: as they were sent, or decoded from their token ids."""
    tokenizer, skip = service.tokenizer, body.skip_special_tokens is not False

    def decoded() -> list[str]:
        return ["" if tokenizer is None else tokenizer.decode(ids, skip) for ids in rows]

    rows = [prompt.ids for prompt in prompts if prompt.text is None]
    texts = iter(await asyncio.to_thread(decoded) if sum(map(len, rows)) > _FEW_TOKENS else decoded())
    return [next(texts) if prompt.text is None else prompt.text for prompt in prompts]


class _Chunks(ChunkWriter):
    """The chunks of a streamed answer."""

    def __init__(self, parts: _Parts, job: Job, model: str, body: CompletionRequest) -> None:
        prompt_tokens = sum(len(prompt.ids) for prompt in parts.prompts)
        super().__init__("text_completion", job, model, body, prompt_tokens, body.logprobs is not None)
        self._parts = parts
        self._logprobs: dict[int, TextLogprobs | None] = {}  # of choices that have begun

    def write(self, item: tuple[int, Delta]) -> bytes | Sequence[bytes]:
        index, delta = item
        if index in self.templates and delta.text and delta.finish_reason is None:  # the usual case
            return self.templates[index].event(delta.text)
        self.count(delta)
        shown = delta.text or delta.logprobs or delta.prompt_logprobs or delta.finish_reason
        if not shown and not (self.with_ids and delta.token_ids):  # such as the middle of a character
            return b""
        begins = index not in self._logprobs
        front, prompt_ids = "", None
        if begins:
            self._logprobs[index], front = self._parts.logprobs(index), self._parts.front(index)
            prompt_ids = self._parts.prompt_ids(index)
        logprobs = self._logprobs[index]
        choice: dict[str, Any] = {
            "index": index,
            "text": front + delta.text,
            "logprobs": None if logprobs is None else logprobs.take(delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if self.with_ids:
            choice |= {"prompt_token_ids": prompt_ids, "token_ids": delta.token_ids}
        chunk = self.common | {"choices": [choice]}
        if begins and self.with_ids:
            return list(event_parts(chunk))
        written = event(chunk)
        if self.plain and delta.finish_reason is None:
            choice["text"] = HOLE
            self.templates[index] = ChunkTemplate(chunk)
        return written
