"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from headrace.server.http.events import Chunk, EventStream, event, event_parts
from headrace.server.http.json_parts import JsonList, JsonNumbers, json_response
from headrace.server.http.pace import while_connected
from headrace.server.openai.choices import (
    HOLE,
    Choice,
    ChunkTemplate,
    ChunkWriter,
    Rows,
    UsageAnswer,
    token_ids,
    usage,
)
from headrace.server.openai.logprobs import ChatLogprobsAnswer, PromptLogprob, PromptLogprobs, prompt_logprobs
from headrace.server.openai.message import AssistantMessage, MessageBuilder, message_delta
from headrace.server.openai.schemas import ChatRequest, PromptFields
from headrace.server.requests.job import Job
from headrace.server.requests.logprobs import ChatToken, chat_logprobs
from headrace.server.requests.prompts import check_length, encode_chat, truncation
from headrace.server.requests.reply import Reading, Reply
from headrace.server.requests.service import Service, service_of
from headrace.serving.requests.completion import Delta

router = APIRouter()

_CONTENT = {"content"}


class ChatChoice(TypedDict):
    """`token_ids` if the request asks for them."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobsAnswer | None
    finish_reason: Annotated[
        str | None, WithJsonSchema({"type": "string", "enum": ["stop", "length", "tool_calls"]})
    ]
    stop_reason: int | str | None
    token_ids: NotRequired[JsonList[int]]


class ChatAnswer(TypedDict):
    """The last two if the request asks for them."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[JsonNumbers]


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
    reading, params = Reading.of(service, tools, prompt, params)
    shown, ids = 0, None
    if body.return_token_ids:
        shown, ids = params.n if body.stream else 1, await JsonNumbers.of(prompt.ids)
    starting = Job.start(
        service, "chatcmpl", [prompt], params, body, bool(body.stream), reading.visible, prompt_ids=shown
    )
    job = await while_connected(request.receive, starting)
    if body.stream:
        writer = _Chunks(service, job, model, body, reading, len(prompt.ids), ids)
        return EventStream(job, writer, job.cancel)
    choices = [_Choice(index, reading, service, body) for index in range(params.n)]
    prompt_scores: Rows[dict[str, PromptLogprob] | None] | None = None
    if body.prompt_logprobs is not None:
        prompt_scores = prompt_logprobs(body.prompt_logprobs, service.tokenizer)

    def add(index: int, delta: Delta) -> None:
        choices[index].add(delta)
        if index == 0 and prompt_scores is not None:
            prompt_scores.add(delta)

    await job.read(request.receive, add)
    answer: ChatAnswer = {
        "id": job.name,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice.written() for choice in choices],
        "usage": _usage(service, job, body, [choice.reply for choice in choices]),
    }
    if prompt_scores is not None:
        answer["prompt_logprobs"] = prompt_scores.value()
    if ids is not None:
        answer["prompt_token_ids"] = ids
    return await json_response(answer, job.held)


class _Choice(Choice):
    """A choice of an answer that is sent whole."""

    def __init__(self, index: int, reading: Reading, service: Service, body: ChatRequest) -> None:
        super().__init__(index, {"token_ids": token_ids()} if body.return_token_ids else {})
        self._logprobs: JsonList[ChatToken] | None = JsonList() if body.logprobs else None
        self._tokenizer = service.tokenizer
        self.reply = Reply(reading)
        self._message = MessageBuilder()
        self._include_reasoning = body.include_reasoning is not False

    def add(self, delta: Delta) -> None:
        super().add(delta)
        if self._logprobs is not None:
            self._logprobs.extend(chat_logprobs(delta.logprobs, self._tokenizer))
        self._message.add(message_delta(self.reply.take(delta), self.reply, self._include_reasoning))

    def written(self) -> ChatChoice:
        made: ChatChoice = {
            "index": self.index,
            "message": self._message.message(),
            "logprobs": None if self._logprobs is None else {"content": self._logprobs},
            "finish_reason": self.reply.finish_reason(self.finish_reason),
            "stop_reason": self.stop_reason,
        }
        if (ids := self.column("token_ids")) is not None:
            made["token_ids"] = ids
        return made


class _Chunks(ChunkWriter):
    """The chunks of a streamed answer."""

    def __init__(
        self,
        service: Service,
        job: Job,
        model: str,
        body: ChatRequest,
        reading: Reading,
        prompt_tokens: int,
        prompt_ids: JsonNumbers | None,
    ) -> None:
        super().__init__("chat.completion.chunk", job, model, body, prompt_tokens, bool(body.logprobs))
        self._service = service
        self._reading = reading
        self._replies: dict[int, Reply] = {}
        self._prompt_ids = prompt_ids
        self._logprobs = bool(body.logprobs)
        self._include_reasoning = body.include_reasoning is not False

    def write(self, item: tuple[int, Delta]) -> bytes | Sequence[bytes]:
        index, delta = item
        self.count(delta)
        begins = index not in self._replies
        if begins:
            self._replies[index] = Reply(self._reading)
        reply = self._replies[index]
        said = message_delta(reply.take(delta), reply, self._include_reasoning)
        if self.plain and not begins and delta.finish_reason is None and said.keys() == _CONTENT:
            if index not in self.templates:
                self.templates[index] = ChunkTemplate(self._chunk(index, {"content": HOLE}, delta))
            return self.templates[index].event(said["content"])
        chunk = b""
        if said or delta.logprobs or delta.finish_reason or (self.with_ids and delta.token_ids):
            chunk = event(self._chunk(index, said, delta, reply.finish_reason(delta.finish_reason)))
        if not begins:
            return chunk
        # Not before there is a token: callers take the first chunk's time as the time to the first token.
        choice = {"index": index, "delta": {"role": "assistant", "content": ""}}
        first = self.common | {"choices": [choice | {"logprobs": None, "finish_reason": None}]}
        if self._prompt_ids is None:
            return event(first) + chunk
        return [*event_parts(first | {"prompt_token_ids": self._prompt_ids}), chunk]

    def _chunk(self, index: int, said: Chunk, delta: Delta, reason: str | None = None) -> dict[str, Any]:
        logprobs = None
        if self._logprobs:
            logprobs = {"content": chat_logprobs(delta.logprobs, self._service.tokenizer)}
        choice = {
            "index": index,
            "delta": said,
            "logprobs": logprobs,
            "finish_reason": reason,
            "stop_reason": delta.stop_reason,
        }
        if self.with_ids and delta.token_ids:
            choice["token_ids"] = delta.token_ids
        return self.common | {"choices": [choice]}

    def usage(self) -> UsageAnswer:
        return _usage(self._service, self.job, self.body, list(self._replies.values()))


def _usage(service: Service, job: Job, body: PromptFields, replies: Sequence[Reply]) -> UsageAnswer:
    counted = usage(job, body.explain)
    if service.replies.reasoning is not None:
        tokens = sum(reply.reasoning_tokens for reply in replies)
        counted["completion_tokens_details"] = {"reasoning_tokens": tokens}
    return counted
