"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from headrace.server.http.events import DONE, Chunk, EventStream, EventWriter, event, event_parts
from headrace.server.http.json_parts import JsonText, json_response
from headrace.server.http.pace import while_connected
from headrace.server.openai.choices import Choice, TokenIds, UsageSoFar, head, usage
from headrace.server.openai.job import Job
from headrace.server.openai.logprobs import ChatLogprobs, PromptLogprobs, chat_logprobs
from headrace.server.openai.prompts import check_length, encode_chat, truncation
from headrace.server.openai.reply import MessageBuilder, Reading, Reply, message_delta
from headrace.server.openai.schemas import ChatRequest
from headrace.server.service import Service, service_of
from headrace.serving.client.source import arrivals
from headrace.serving.requests.completion import Delta

HOLE = "\ue000text\ue000"
"""Stands for the text in the chunk that a template is made from; of a plane that no text uses."""

_HOLE = encode_basestring(HOLE).encode()


class ChunkTemplate:
    """Made from a chunk that holds HOLE once, as a whole value. Raises ValueError for any other."""

    __slots__ = ("_after", "_before")

    def __init__(self, chunk: Chunk) -> None:
        self._before, self._after = event(chunk).split(_HOLE)

    def event(self, text: str) -> bytes:
        """The event of the chunk with this text in the place of HOLE."""
        return self._before + encode_basestring(text).encode() + self._after


router = APIRouter()

_CONTENT = {"content"}


@router.post("/v1/chat/completions")
async def chat_completions(
    body: ChatRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    model = service.model(body.model)
    body.check()
    tools = body.tool_use
    params = body.sampling
    prompt = await encode_chat(
        service,
        body.messages,
        body.add_generation_prompt is not False,
        body.template_variables,
        tools.tools,
        continue_final_message=bool(body.continue_final_message),
        add_special_tokens=bool(body.add_special_tokens),
        truncation=truncation(service, body, params.max_tokens),
    )
    check_length(service, [prompt], params.max_tokens)
    reading = Reading.of(service, tools, prompt.text or "", params, prompt.continued)
    params = reading.held(service, params)
    shown, ids = 0, None
    if body.return_token_ids:
        shown, ids = params.n if body.stream else 1, await JsonText.of_numbers(prompt.ids)
    job = await while_connected(
        request.receive,
        Job.start(service, "chatcmpl", [prompt], params, body, reading.visible, prompt_ids=shown),
    )
    if body.stream:
        so_far = UsageSoFar(len(prompt.ids))
        return EventStream(job, _Events(service, job, model, body, reading, so_far, ids), job.cancel)
    answers = [_Answer(index, reading, service, body) for index in range(params.n)]
    await while_connected(request.receive, _gather(job, answers, body))
    answer = head("chat.completion", job, model)
    answer["choices"] = [each.choice() for each in answers]
    answer["usage"] = _usage(service, job, [each.reply for each in answers])
    if answers[0].prompt_logprobs is not None:
        answer["prompt_logprobs"] = answers[0].prompt_logprobs.value()
    if ids is not None:
        answer["prompt_token_ids"] = ids
    return await json_response(answer, job.held)


async def _gather(job: Job, answers: Sequence[_Answer], body: ChatRequest) -> None:
    try:
        async for items in arrivals(job):
            for index, delta in items:
                answers[index].add(delta, body)
    finally:
        job.cancel()


class _Answer:
    """A choice of a whole answer."""

    def __init__(self, index: int, reading: Reading, service: Service, body: ChatRequest) -> None:
        self.reply = Reply(reading)
        self._grown = Choice(
            index,
            ChatLogprobs(service.tokenizer) if body.logprobs else None,
            {"token_ids": TokenIds()} if body.return_token_ids else None,
        )
        self.prompt_logprobs: PromptLogprobs | None = None
        if index == 0 and body.prompt_logprobs is not None:
            self.prompt_logprobs = PromptLogprobs(body.prompt_logprobs, service.tokenizer)
        self._message = MessageBuilder()

    def add(self, delta: Delta, body: ChatRequest) -> None:
        self._grown.add(delta)
        if self.prompt_logprobs is not None:
            self.prompt_logprobs.add(delta)
        self._message.add(message_delta(self.reply.take(delta), self.reply, _shows_reasoning(body)))

    def choice(self) -> dict[str, Any]:
        grown = self._grown
        return {
            "index": grown.index,
            "message": self._message.message(),
            "logprobs": grown.logprobs,
            "finish_reason": self.reply.finish_reason(grown.finish_reason),
            "stop_reason": grown.stop_reason,
        } | grown.extras


class _Events(EventWriter[tuple[int, Delta]]):
    """The chunks of a streamed answer."""

    def __init__(
        self,
        service: Service,
        job: Job,
        model: str,
        body: ChatRequest,
        reading: Reading,
        so_far: UsageSoFar,
        prompt_ids: JsonText | None,
    ) -> None:
        self._service = service
        self._job = job
        self._body = body
        self._reading = reading
        self._common: dict[str, Any] = head("chat.completion.chunk", job, model)
        if body.streamed_usage:
            self._common["usage"] = None
        self._so_far = so_far
        self._replies: dict[int, Reply] = {}
        self._prompt_ids = prompt_ids
        self._plain = not body.logprobs and not body.continuous_usage and not body.return_token_ids
        self._shows_reasoning = _shows_reasoning(body)
        self._templates: dict[int, ChunkTemplate] = {}

    def write(self, item: tuple[int, Delta]) -> bytes | Sequence[bytes]:
        index, delta = item
        body, common = self._body, self._common
        if body.continuous_usage:
            common["usage"] = self._so_far.add(delta)
        begins = index not in self._replies
        if begins:
            self._replies[index] = Reply(self._reading)
        reply = self._replies[index]
        said = message_delta(reply.take(delta), reply, self._shows_reasoning)
        if self._plain and not begins and delta.finish_reason is None and said.keys() == _CONTENT:
            if index not in self._templates:
                choice = _choice(index, {"content": HOLE}) | {"stop_reason": None}
                self._templates[index] = ChunkTemplate(common | {"choices": [choice]})
            return self._templates[index].event(said["content"])
        chunk = self._chunk(index, delta, reply, said)
        if not begins:
            return chunk
        # Not before there is a token: callers take the first chunk for the first token's time.
        first = common | {"choices": [_choice(index, {"role": "assistant", "content": ""})]}
        if self._prompt_ids is None:
            return event(first) + chunk
        return [*event_parts(first | {"prompt_token_ids": self._prompt_ids}), chunk]

    def _chunk(self, index: int, delta: Delta, reply: Reply, said: dict[str, Any]) -> bytes:
        """An addition; b"" where it says nothing."""
        body = self._body
        ids = {"token_ids": delta.token_ids} if body.return_token_ids and delta.token_ids else {}
        if not (said or delta.logprobs or delta.finish_reason or ids):
            return b""
        logprobs = chat_logprobs(delta.logprobs, self._service.tokenizer) if body.logprobs else None
        reason = reply.finish_reason(delta.finish_reason)
        choice = _choice(index, said, logprobs, reason) | {"stop_reason": delta.stop_reason} | ids
        return event(self._common | {"choices": [choice]})

    def end(self) -> Iterable[bytes]:
        if self._body.streamed_usage:
            counted = _usage(self._service, self._job, list(self._replies.values()))
            yield event(self._common | {"choices": [], "usage": counted})
        yield DONE


def _choice(
    index: int,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _shows_reasoning(body: ChatRequest) -> bool:
    return body.include_reasoning is not False


def _usage(service: Service, job: Job, replies: Sequence[Reply]) -> dict[str, Any]:
    counted = usage(job)
    if service.replies.reasoning is not None:
        tokens = sum(reply.reasoning_tokens for reply in replies)
        counted["completion_tokens_details"] = {"reasoning_tokens": tokens}
    return counted
