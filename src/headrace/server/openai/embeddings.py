"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import uuid
from typing import Annotated, ClassVar, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import Field
from typing_extensions import TypedDict

from headrace.core.params import SamplingParams
from headrace.core.types import Pooling
from headrace.core.vectors import packed, shaped
from headrace.errors import InvalidParams
from headrace.server.http.json_parts import JsonList, json_response
from headrace.server.http.pace import while_connected
from headrace.server.observability.record import current
from headrace.server.openai.choices import PromptTokensDetails
from headrace.server.openai.job import new_requests, started
from headrace.server.openai.prompts import check_length, encode_prompts, truncation
from headrace.server.openai.request_fields import EMBEDDING
from headrace.server.openai.schemas import Prompts, TruncationFields, User, WorkFields
from headrace.server.service import Service, service_of
from headrace.serving.requests.generation import Embedding, embed

router = APIRouter()

MAX_DIMENSIONS = 2**18

MAX_NUMBERS = 2**22
"""In the vectors of one request: about 85 MB of JSON."""

_PROMPT_ALONE = SamplingParams(max_tokens=0)


class EmbeddingRequest(TruncationFields, WorkFields):
    """Body of POST /v1/embeddings. `pooling` is an extension; its default is the server's option."""

    others: ClassVar = EMBEDDING

    input: Prompts
    user: User | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None
    normalize: bool | None = None
    add_special_tokens: bool | None = None
    pooling: Literal["mean", "last"] | None = None


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


async def embedded(service: Service, body: EmbeddingRequest) -> list[Embedding]:
    """The vectors of a request's inputs. Raises InvalidParams, PromptTooLong, and what the engine raises."""
    size = service.facts.hidden_size
    if body.dimensions is not None and body.dimensions > size:
        raise InvalidParams(f"dimensions must be at most {size}, the model's own size, got {body.dimensions}")
    numbers = len(body.input) * (body.dimensions or size)
    if numbers > MAX_NUMBERS:
        raise InvalidParams(
            f"{len(body.input)} vectors of {body.dimensions or size} numbers are more than {MAX_NUMBERS} numbers: send "
            "fewer inputs at once, or ask for fewer dimensions"
        )
    prompts = await encode_prompts(
        service, body.input, body.add_special_tokens is not False, truncation(service, body, 0)
    )
    check_length(service, prompts, 0)
    pooling = service.pooling if body.pooling is None else Pooling(body.pooling)
    name = f"embd-{uuid.uuid4().hex}"
    news = await new_requests(name, prompts, _PROMPT_ALONE, body, pooling=pooling)
    found = await started(service, news, lambda new: embed(service.gate, new))
    record = current()
    if record is not None:
        tokens = sum(one.num_prompt_tokens for one in found)
        record.gave_vectors(tokens, sum(one.num_cached_tokens for one in found))
    return found


def _entry(index: int, embedding: Embedding, body: EmbeddingRequest) -> EmbeddingEntry:
    vector = shaped(embedding.vector, body.dimensions, body.normalize is not False)
    data: str | list[float] = list(vector)
    if body.encoding_format == "base64":
        data = base64.b64encode(packed(vector)).decode()
    return {"object": "embedding", "index": index, "embedding": data}
