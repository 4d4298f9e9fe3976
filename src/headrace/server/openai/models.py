"""GET /v1/models, and POST /tokenize and /detokenize: what is served, and its tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response
from pydantic import Field, WithJsonSchema
from typing_extensions import TypedDict

from headrace.errors import InvalidParams
from headrace.server.http.json_parts import JsonList, json_response
from headrace.server.http.strict import Strict
from headrace.server.openai.request_fields import TOKENIZE
from headrace.server.requests.fields import MAX_MODEL_NAME_CHARS, MESSAGES, Token
from headrace.server.requests.prompts import encode_chat, encode_prompts, tokenizer_of
from headrace.server.requests.service import Service, service_of
from headrace.text.tools.request import checked_tool_use

router = APIRouter()

MAX_TOKENS = 2**18
"""Of a request to /detokenize."""

_FEW = 2000


class TokenizeRequest(Strict):
    """Body of POST /tokenize: a prompt, or a conversation, as the model would see it."""

    others: ClassVar = TOKENIZE

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    prompt: str | None = None
    messages: Annotated[Any, WithJsonSchema({"anyOf": [MESSAGES, {"type": "null"}]})] = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Any = None


class DetokenizeRequest(Strict):
    """Body of POST /detokenize."""

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    tokens: Annotated[list[Token], Field(max_length=MAX_TOKENS, fail_fast=True)]


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | None


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class TokenizeAnswer(TypedDict):
    count: int
    max_model_len: int | None
    tokens: Sequence[int]
    token_strs: JsonList[str] | None


class DetokenizeAnswer(TypedDict):
    prompt: str


@router.get("/v1/models")
async def models(service: Annotated[Service, Depends(service_of)]) -> Response:
    answer: ModelList = {"object": "list", "data": [_card(service, name) for name in service.names]}
    return JSONResponse(answer)


@router.get("/v1/models/{name:path}")
async def model(name: str, service: Annotated[Service, Depends(service_of)]) -> Response:
    return JSONResponse(_card(service, service.model(name)))


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, service: Annotated[Service, Depends(service_of)]) -> Response:
    """Token ids of a prompt (with what the model expects around it), or of a conversation by the chat template."""
    service.model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidParams("either prompt or messages must be given")
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidParams("continue_final_message and add_generation_prompt cannot both be true")
    tokenizer = tokenizer_of(service)
    if body.prompt is not None:
        (encoded,) = await encode_prompts(service, [body.prompt], body.add_special_tokens is not False)
    else:
        encoded = await encode_chat(
            service,
            body.messages,
            body.add_generation_prompt is not False,
            body.chat_template_kwargs or {},
            checked_tool_use(body.tools, None).tools,
            continue_final_message=bool(body.continue_final_message),
            add_special_tokens=bool(body.add_special_tokens),
        )
    strings: JsonList[str] | None = None
    if body.return_token_strs:
        strings = JsonList()
        for at in range(0, len(encoded.ids), _FEW):
            strings.extend([tokenizer.token(token) for token in encoded.ids[at : at + _FEW]])
            await asyncio.sleep(0)
    answer: TokenizeAnswer = {
        "count": len(encoded.ids),
        "max_model_len": service.facts.max_model_len,
        "tokens": encoded.ids,
        "token_strs": strings,
    }
    return await json_response(answer)


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, service: Annotated[Service, Depends(service_of)]) -> Response:
    """The text of token ids, special ones by their names."""
    service.model(body.model)
    tokenizer, vocab = tokenizer_of(service), service.facts.vocab_size
    if body.tokens and max(body.tokens) >= vocab:
        raise InvalidParams(f"token id {max(body.tokens)} is outside the model's vocabulary of {vocab} ids")
    if len(body.tokens) <= _FEW:
        text = tokenizer.decode(body.tokens, skip_special_tokens=False)
    else:
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, False)
    answer: DetokenizeAnswer = {"prompt": text}
    return await json_response(answer)


def _card(service: Service, name: str) -> ModelCard:
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "headrace",
        "root": service.facts.model,
        "max_model_len": service.facts.max_model_len,
    }
