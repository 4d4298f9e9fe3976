"""POST /api/chat, /api/generate, /api/embed and /api/embeddings."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any, NotRequired

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from typing_extensions import TypedDict

from headrace.core.vectors import shaped
from headrace.errors import InvalidParams, PromptTooLong
from headrace.server.http.events import EventStream
from headrace.server.http.json_parts import JsonList, json_response
from headrace.server.http.pace import while_connected
from headrace.server.ollama.answers import Answer, Pieces, nanoseconds, nothing
from headrace.server.ollama.conversation import chat_messages, continues, count_calls
from headrace.server.ollama.schemas import (
    GeneratingFields,
    ModelFields,
    OllamaChatRequest,
    OllamaEmbeddingRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    served_name,
)
from headrace.server.requests.job import Job
from headrace.server.requests.prompts import (
    MANY_MESSAGES,
    Encoded,
    Truncation,
    are_many,
    encode_chat,
    encode_prompts,
    encode_shortened,
    read_messages,
    tokenizer_of,
)
from headrace.server.requests.reply import Reading, Reply
from headrace.server.requests.service import Service, service_of
from headrace.server.requests.vectors import VectorFields, embedded
from headrace.text.tools.request import ToolUse, checked_tool_use

router = APIRouter()

_LONGEST_SHARE = 4
"""A prompt that is too long is cut so that num_predict tokens fit after it, or a quarter of the context."""


class OllamaEmbedAnswer(TypedDict):
    model: str
    embeddings: JsonList[list[float]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]


class OllamaEmbeddingAnswer(TypedDict):
    embedding: list[float]


@router.post("/api/chat")
async def chat(
    body: OllamaChatRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    begun = time.perf_counter()
    model = named(service, body.model)
    body.check()
    if not body.messages:
        return JSONResponse(nothing(model, chats=True, unloads=body.unloads))
    tools = body.tool_use
    many = are_many(body.messages) or count_calls(body.messages) > MANY_MESSAGES
    messages = await read_messages(service, many, partial(chat_messages, body.messages))
    prompt = await _encoded_chat(service, body, messages, tools)
    return await _answered(request, service, body, model, prompt, tools, begun, chats=True)


@router.post("/api/generate")
async def generate(
    body: OllamaGenerateRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    begun = time.perf_counter()
    model = named(service, body.model)
    body.check()
    if not body.prompt:
        return JSONResponse(nothing(model, chats=False, unloads=body.unloads))
    tools = checked_tool_use(None, None, None)
    templated = not body.raw and tokenizer_of(service).chat_template_source() is not None
    if templated:
        prompt = await _encoded_turn(service, body, tools)
    elif body.system:
        raise InvalidParams("system needs a chat template, and this model has none")
    else:
        prompt = await _encoded_text(service, body, body.prompt)
    return await _answered(request, service, body, model, prompt, tools, begun, chats=False)


@router.post("/api/embed")
async def embed(
    body: OllamaEmbedRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    begun = time.perf_counter()
    model = named(service, body.model)
    answer: OllamaEmbedAnswer = {"model": model, "embeddings": JsonList()}
    if not body.input:
        return await json_response(answer)
    wanted = VectorFields(
        **body.work_fields, input=list(body.input), dimensions=body.dimensions,
        truncate_prompt_tokens=None if body.truncate is False else _keep(service, body),
    )  # fmt: skip
    found = await while_connected(request.receive, embedded(service, wanted))
    for one in found:
        answer["embeddings"].extend([list(shaped(one.vector, body.dimensions, True))])
    answer["total_duration"] = nanoseconds(time.perf_counter() - begun)
    answer["load_duration"] = 0
    answer["prompt_eval_count"] = sum(one.num_prompt_tokens for one in found)
    return await json_response(answer)


@router.post("/api/embeddings")
async def old_embeddings(
    body: OllamaEmbeddingRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    """One vector, not scaled to length 1."""
    named(service, body.model)
    if not body.prompt:
        return JSONResponse({"embedding": []})
    wanted = VectorFields(
        **body.work_fields, input=[body.prompt], truncate_prompt_tokens=_keep(service, body)
    )
    (found,) = await while_connected(request.receive, embedded(service, wanted))
    answer: OllamaEmbeddingAnswer = {"embedding": list(shaped(found.vector, None, False))}
    return await json_response(answer)


def named(service: Service, asked: str | None) -> str:
    """The name to answer with. Raises UnknownModelName."""
    found = service.model(served_name(asked, service.names))
    return found if asked in (None, "", ":latest") else asked


def _context(service: Service, body: ModelFields) -> int | None:
    """Tokens of prompt and answer together: the model's context, or less if `num_ctx` says so."""
    limits = [limit for limit in (service.facts.max_model_len, body.given.num_ctx) if limit is not None]
    return min(limits, default=None)


def _keep(service: Service, body: ModelFields) -> int | None:
    """Tokens of a text that is embedded; Ollama cuts longer ones."""
    return _context(service, body)


def _room(body: GeneratingFields, context: int) -> int | None:
    """Tokens that a prompt which is too long must leave to the answer; None: nothing is asked, or too much of the
    context."""
    asked = body.given.num_predict
    return asked if asked is not None and 0 < asked <= context // _LONGEST_SHARE else None


async def _encoded_chat(
    service: Service, body: GeneratingFields, messages: list[dict[str, Any]], tools: ToolUse
) -> Encoded:
    """The conversation as the chat template writes it, without its oldest turns if it is too long."""
    continued = continues(messages)
    encode = partial(
        encode_chat, service, add_generation_prompt=not continued, variables=body.template_variables,
        tools=tools.tools, continue_final_message=continued,
    )  # fmt: skip
    context = _context(service, body)
    if context is None or body.truncate is False:
        return _fitting(await encode(messages), context)
    try:
        return await encode_shortened(
            lambda some: encode(list(some)), messages, context, _room(body, context)
        )
    except PromptTooLong as error:
        if body.given.num_ctx != context:
            raise
        raise PromptTooLong(f"{error} (options.num_ctx is {context})") from None


async def _encoded_turn(service: Service, body: OllamaGenerateRequest, tools: ToolUse) -> Encoded:
    """The prompt as the user's turn; without its beginning if it is too long."""

    def turn(text: str) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": body.system}] if body.system else []
        return [*system, {"role": "user", "content": text}]

    text = body.prompt or ""
    try:
        return await _encoded_chat(service, body, turn(text), tools)
    except PromptTooLong:
        context = _context(service, body)
        if context is None or body.truncate is False:
            raise
        room = _room(body, context) or context // _LONGEST_SHARE
        keep = context - room - len((await _encoded_chat(service, body, turn(""), tools)).ids)
        while keep > 0:
            (cut,) = await encode_prompts(
                service, [text], add_special_tokens=False, truncation=Truncation(keep)
            )
            rest = tokenizer_of(service).decode(cut.ids)
            prompt = await _encoded_chat(service, body, turn(rest), tools)
            excess = len(prompt.ids) + room - context  # of tokens that other characters beside them make
            if excess <= 0:
                return prompt
            keep -= excess
        raise


async def _encoded_text(service: Service, body: GeneratingFields, text: str) -> Encoded:
    """The text as it is; the end of it if it is too long."""
    context = _context(service, body)
    if context is None or body.truncate is False:
        (prompt,) = await encode_prompts(service, [text])
        return _fitting(prompt, context)
    (prompt,) = await encode_prompts(service, [text], truncation=Truncation(context))
    room = _room(body, context)
    if len(prompt.ids) + (room or 1) <= context:
        return prompt
    return Truncation(max(1, context - (room or context // _LONGEST_SHARE))).apply(prompt)


def _fitting(prompt: Encoded, context: int | None) -> Encoded:
    """Raises PromptTooLong."""
    if context is not None and len(prompt.ids) >= context:
        raise PromptTooLong(
            f"the context holds {context} tokens, but the prompt has {len(prompt.ids)}: shorten it, raise "
            "options.num_ctx if it is below the model's context, or allow truncate"
        )
    return prompt


async def _answered(
    request: Request,
    service: Service,
    body: GeneratingFields,
    model: str,
    prompt: Encoded,
    tools: ToolUse,
    begun: float,
    *,
    chats: bool,
) -> Response:
    context = _context(service, body)
    params = body.sampling(None if context is None else context - len(prompt.ids))
    reading, params = Reading.of(service, tools, prompt, params)
    starting = Job.start(service, "ollama", [prompt], params, body.work, body.streams, reading.visible)
    job = await while_connected(request.receive, starting)
    pieces = Pieces(Reply(reading), body.shows_thinking)
    answer = Answer(
        job, model, pieces, service.tokenizer, chats=chats, begun=begun, logprobs=bool(body.logprobs)
    )
    if body.streams:
        return EventStream(job, answer, job.cancel)
    await job.read(request.receive, answer.add)
    return await json_response(answer.whole(), job.held)
