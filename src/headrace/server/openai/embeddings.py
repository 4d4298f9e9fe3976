"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import Field

from headrace.core.params import SamplingParams
from headrace.core.types import MAX_NAME_CHARS, MAX_TIMEOUT_S, NO_USER, NewRequest, Pooling
from headrace.core.vectors import packed, shaped
from headrace.errors import InvalidParams
from headrace.server.http.json_parts import JsonList, json_response
from headrace.server.http.pace import Slices, while_connected
from headrace.server.observability.record import current
from headrace.server.openai.job import IDS_A_COMPLETION, STARTED_A_TURN
from headrace.server.openai.prompts import Encoded, check_length, encode_prompts, truncation
from headrace.server.openai.request_fields import EMBEDDING, Strict
from headrace.server.openai.schemas import MAX_MODEL_NAME_CHARS, Priority, Prompts, Side, TruncatedLength
from headrace.server.service import Service, service_of
from headrace.serving.requests.embedding import Embedding, embed

router = APIRouter()

MAX_DIMENSIONS = 2**18

MAX_NUMBERS = 2**22
"""In the vectors of one request: about 85 MB of JSON."""

_PROMPT_ALONE = SamplingParams(max_tokens=0)


class EmbeddingRequest(Strict):
    """Body of POST /v1/embeddings. `pooling` is of this server; without it the server's own choice holds."""

    others: ClassVar = EMBEDDING

    input: Prompts
    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None
    user: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None

    # As in vLLM.
    normalize: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: TruncatedLength | None = None
    truncation_side: Side | None = None
    priority: Priority | None = None
    cache_salt: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None

    # Our own.
    pooling: Literal["mean", "last"] | None = None
    queue_timeout: Annotated[float, Field(ge=0, le=MAX_TIMEOUT_S)] | None = None
    timeout: Annotated[float, Field(ge=0, le=MAX_TIMEOUT_S)] | None = None


@router.post("/v1/embeddings")
async def embeddings(
    body: EmbeddingRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    """Prompts as vectors: the model's last hidden state of a prompt's last token, or the mean over its tokens."""
    model = service.model(body.model)
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
    found = await while_connected(request.receive, _embed_all(service, body, prompts))
    data = JsonList()
    for index, embedding in enumerate(found):
        data.extend([_entry(index, embedding, body)])
        await asyncio.sleep(0)  # others are served between two vectors: a thousand take a while
    tokens = sum(embedding.num_prompt_tokens for embedding in found)
    cached = sum(embedding.num_cached_tokens for embedding in found)
    record = current()
    if record is not None:
        record.gave_vectors(tokens, cached)
    usage = {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return await json_response({"object": "list", "model": model, "usage": usage, "data": data})


def _entry(index: int, embedding: Embedding, body: EmbeddingRequest) -> dict[str, Any]:
    vector = shaped(embedding.vector, body.dimensions, body.normalize is not False)
    data: str | list[float] = list(vector)
    if body.encoding_format == "base64":
        data = base64.b64encode(packed(vector)).decode()
    return {"object": "embedding", "index": index, "embedding": data}


async def _embed_all(service: Service, body: EmbeddingRequest, prompts: Sequence[Encoded]) -> list[Embedding]:
    """All of them, or the first error after the others have been taken back."""
    name = f"embd-{uuid.uuid4().hex}"
    pooling = service.pooling if body.pooling is None else Pooling(body.pooling)
    slices = Slices(STARTED_A_TURN)
    news: list[NewRequest] = []
    for number, prompt in enumerate(prompts):
        new = NewRequest(
            f"{name}-{number}", prompt.ids, _PROMPT_ALONE, body.priority or 0, body.user or NO_USER,
            body.cache_salt or "", queue_timeout_s=body.queue_timeout, timeout_s=body.timeout, pooling=pooling,
        )  # fmt: skip
        news.append(new)
        await slices.add(1)
    async with service.gate.reserved(news):
        tasks: list[asyncio.Future[Embedding]] = []
        try:
            for new in news:
                tasks.append(asyncio.ensure_future(embed(service.gate, new)))
                await slices.add(1 + len(new.prompt) // IDS_A_COMPLETION)
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
