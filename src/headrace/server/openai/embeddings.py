"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, ClassVar, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from typing_extensions import TypedDict

from headrace.core.vectors import packed, shaped
from headrace.server.http.json_parts import JsonList, json_response
from headrace.server.http.pace import while_connected
from headrace.server.openai.choices import PromptTokensDetails
from headrace.server.openai.request_fields import EMBEDDING
from headrace.server.requests.fields import User
from headrace.server.requests.service import Service, service_of
from headrace.server.requests.vectors import VectorFields, embedded
from headrace.serving.requests.generation import Embedding

router = APIRouter()


class EmbeddingRequest(VectorFields):
    """Body of POST /v1/embeddings."""

    others: ClassVar = EMBEDDING

    user: User | None = None
    encoding_format: Literal["float", "base64"] | None = None
    normalize: bool | None = None


class EmbeddingEntry(TypedDict):
    """`embedding` is a list of numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class EmbeddingAnswer(TypedDict):
    object: Literal["list"]
    model: str
    usage: EmbeddingUsage
    data: JsonList[EmbeddingEntry]


@router.post("/v1/embeddings")
async def embeddings(
    body: EmbeddingRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    """Prompts as vectors: the model's last hidden state of a prompt's last token, or the mean over its tokens."""
    model = service.model(body.model)
    found = await while_connected(request.receive, embedded(service, body))
    data = JsonList[EmbeddingEntry]()
    for index, embedding in enumerate(found):
        data.extend([_entry(index, embedding, body)])
        await asyncio.sleep(0)  # a thousand vectors take a while
    tokens = sum(embedding.num_prompt_tokens for embedding in found)
    cached = sum(embedding.num_cached_tokens for embedding in found)
    usage: EmbeddingUsage = {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    answer: EmbeddingAnswer = {"object": "list", "model": model, "usage": usage, "data": data}
    return await json_response(answer)


def _entry(index: int, embedding: Embedding, body: EmbeddingRequest) -> EmbeddingEntry:
    vector = shaped(embedding.vector, body.dimensions, body.normalize is not False)
    data: str | list[float] = list(vector)
    if body.encoding_format == "base64":
        data = base64.b64encode(packed(vector)).decode()
    return {"object": "embedding", "index": index, "embedding": data}
