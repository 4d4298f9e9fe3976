"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from headrace.core.types import TokenLogprobs
from headrace.server.http.events import DONE, EventStream, EventWriter, event, event_parts
from headrace.server.http.json_parts import JsonList, JsonText, json_response
from headrace.server.http.pace import Slices, while_connected
from headrace.server.openai.chat import HOLE, ChunkTemplate
from headrace.server.openai.choices import Choice, Column, TokenIds, UsageSoFar, gather, head, shows, usage
from headrace.server.openai.job import Job
from headrace.server.openai.logprobs import PromptLogprobs, TextOffsets, completion_logprobs
from headrace.server.openai.prompts import Encoded, check_length, encode_prompts, truncation
from headrace.server.openai.schemas import CompletionRequest
from headrace.server.service import Service, service_of
from headrace.serving.requests.completion import Delta
from headrace.text.tokenizer import Tokenizer

_FEW_TOKENS = 2000
"""Are decoded on the event loop: that takes less time than handing them to a thread."""


class TextLogprobs:
    """`logprobs` of one choice with `count` alternatives, as its text grows; with `echo`, the prompt's come first."""

    def __init__(
        self, tokenizer: Tokenizer | None, skip_special_tokens: bool, prompt: Encoded, count: int, echo: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._count = count
        self._offsets = TextOffsets(tokenizer, skip_special_tokens, () if echo else prompt.ids)
        self._echoes = echo
        self._first = prompt.ids[:1] if echo else ()

    def take(self, prompt: Sequence[TokenLogprobs], output: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The entries of new tokens: of the prompt, as long as those come, then of the output."""
        entries: list[TokenLogprobs | int] = [*self._first, *(prompt if self._echoes else ()), *output]
        self._first = ()
        return completion_logprobs(entries, self._count, self._tokenizer, self._offsets)


class WholeTextLogprobs:
    """`logprobs` of a whole answer's choice: columns, kept as JSON."""

    def __init__(self, growing: TextLogprobs) -> None:
        self._growing = growing
        self._columns: dict[str, JsonList] = {}

    def add(self, delta: Delta) -> None:
        for name, values in self._growing.take(delta.prompt_logprobs, delta.logprobs).items():
            self._columns.setdefault(name, JsonList()).extend(values)

    def value(self) -> dict[str, JsonList]:
        return self._columns


async def echoed(
    prompts: Sequence[Encoded], tokenizer: Tokenizer | None, skip_special_tokens: bool
) -> list[str]:
    """Prompts as they stand before their completions: as they came, or what their token ids say."""

    def decoded() -> list[str]:
        return ["" if tokenizer is None else tokenizer.decode(ids, skip_special_tokens) for ids in rows]

    rows = [prompt.ids for prompt in prompts if prompt.text is None]
    texts = iter(await asyncio.to_thread(decoded) if sum(map(len, rows)) > _FEW_TOKENS else decoded())
    return [next(texts) if prompt.text is None else prompt.text for prompt in prompts]


router = APIRouter()

_KIND = "text_completion"

_CHOICES_A_TURN = 256


@router.post("/v1/completions")
async def completions(
    body: CompletionRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    model = service.model(body.model)
    body.check()
    params = body.sampling
    prompts = await encode_prompts(
        service,
        body.prompt,
        body.add_special_tokens is not False,
        truncation(service, body, params.max_tokens),
    )
    # Nobody asked for the default length: where less is left, the completion ends with the context.
    check_length(service, prompts, None if body.max_tokens is None else params.max_tokens)
    texts = await _Texts.of(service, body, prompts)
    prompt_ids = params.n if body.return_token_ids else 0
    starting = Job.start(service, "cmpl", prompts, params, body, echo=bool(body.echo), prompt_ids=prompt_ids)
    job = await while_connected(request.receive, starting)
    if body.stream:
        return EventStream(job, _Events(texts, job, model, body), job.cancel)
    choices = [
        Choice(index, texts.whole_logprobs(index), texts.extras()) for index in range(len(prompts) * params.n)
    ]
    await while_connected(request.receive, gather(job, choices))
    answer = head(_KIND, job, model)
    answer["choices"] = await _written(choices, texts, job)
    answer["usage"] = usage(job)
    return await json_response(answer, job.held)


async def _written(choices: Sequence[Choice], texts: _Texts, job: Job) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    slices = Slices(_CHOICES_A_TURN)
    for choice in choices:
        front = texts.front(choice.index)
        if job.held is not None:
            job.held.take(len(front))
        about = {
            "index": choice.index,
            "text": front + choice.text,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        written.append(about | choice.extras | texts.prompt_ids(choice.index))
        await slices.add(1)
    return written


class _Texts:
    """What comes before each choice's text, and the log-probabilities of both. `fronts`: a text a prompt, with echo.
    `ids`: of each prompt, where the answer shows them."""

    def __init__(
        self,
        service: Service,
        body: CompletionRequest,
        prompts: Sequence[Encoded],
        fronts: Sequence[str] | None,
        ids: Sequence[JsonText],
    ) -> None:
        self._tokenizer = service.tokenizer
        self._skip = body.skip_special_tokens is not False
        self._body = body
        self._fronts = fronts
        self._ids = ids
        self._n = body.n or 1
        self.prompts = prompts

    @classmethod
    async def of(cls, service: Service, body: CompletionRequest, prompts: Sequence[Encoded]) -> _Texts:
        skip = body.skip_special_tokens is not False
        fronts = await echoed(prompts, service.tokenizer, skip) if body.echo else None
        ids: list[JsonText] = []
        if body.return_token_ids:
            slices = Slices(_CHOICES_A_TURN)
            for prompt in prompts:
                ids.append(await JsonText.of_numbers(prompt.ids))
                await slices.add(1)
        return cls(service, body, prompts, fronts, ids)

    def front(self, index: int) -> str:
        return "" if self._fronts is None else self._fronts[index // self._n]

    def logprobs(self, index: int) -> TextLogprobs | None:
        """None where they are not shown."""
        if self._body.logprobs is None:
            return None
        prompt = self.prompts[index // self._n]
        return TextLogprobs(
            self._tokenizer, self._skip, prompt, self._body.logprobs, self._fronts is not None
        )

    def whole_logprobs(self, index: int) -> WholeTextLogprobs | None:
        growing = self.logprobs(index)
        return None if growing is None else WholeTextLogprobs(growing)

    def extras(self) -> dict[str, Column]:
        """vLLM's further fields of a whole answer's choice, as far as they are asked for."""
        found: dict[str, Column] = {}
        if self._body.prompt_logprobs is not None:
            found["prompt_logprobs"] = PromptLogprobs(self._body.prompt_logprobs, self._tokenizer)
        if self._body.return_token_ids:
            found["token_ids"] = TokenIds()
        return found

    def prompt_ids(self, index: int) -> dict[str, Any]:
        """The field with the prompt's token ids, where it is asked for."""
        return {"prompt_token_ids": self._ids[index // self._n]} if self._ids else {}


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
        self._logprobs: dict[int, TextLogprobs | None] = {}  # of choices that have begun
        self._plain = body.logprobs is None and not body.continuous_usage and not body.return_token_ids
        self._templates: dict[int, ChunkTemplate] = {}

    def write(self, item: tuple[int, Delta]) -> bytes | Sequence[bytes]:
        index, delta = item
        if index in self._templates and delta.text and delta.finish_reason is None:  # as nearly always
            return self._templates[index].event(delta.text)
        counts = self._so_far.add(delta)
        with_ids = self._body.return_token_ids
        if not shows(delta) and not (with_ids and delta.token_ids):
            return b""
        begins = index not in self._logprobs
        front, prompt_ids = "", {"prompt_token_ids": None}
        if begins:
            self._logprobs[index], front = self._texts.logprobs(index), self._texts.front(index)
            prompt_ids = self._texts.prompt_ids(index)
        shown = self._logprobs[index]
        choice: dict[str, Any] = {
            "index": index,
            "text": front + delta.text,
            "logprobs": None if shown is None else shown.take(delta.prompt_logprobs, delta.logprobs),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if with_ids:
            choice |= prompt_ids | {"token_ids": delta.token_ids}
        chunk = self._common | {"choices": [choice]}
        if self._body.continuous_usage:
            chunk["usage"] = counts
        if begins and with_ids:
            return list(event_parts(chunk))
        written = event(chunk)
        if self._plain and delta.finish_reason is None:
            choice["text"] = HOLE
            self._templates[index] = ChunkTemplate(chunk)
        return written

    def end(self) -> Iterable[bytes]:
        if self._body.streamed_usage:
            yield event(self._common | {"choices": [], "usage": usage(self._job)})
        yield DONE
