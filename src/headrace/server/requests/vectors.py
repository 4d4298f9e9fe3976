"""Prompts as vectors, for the embeddings of every API."""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

from pydantic import Field

from headrace.core.params import SamplingParams
from headrace.core.types import Pooling
from headrace.errors import InvalidParams
from headrace.server.requests.fields import Prompts, TruncationFields, WorkFields
from headrace.server.requests.job import new_requests, started
from headrace.server.requests.prompts import check_length, encode_prompts, truncation
from headrace.server.requests.record import current
from headrace.server.requests.service import Service
from headrace.serving.requests.generation import Embedding, embed

MAX_DIMENSIONS = 2**18

MAX_NUMBERS = 2**22
"""In the vectors of one request: about 85 MB of JSON."""

_PROMPT_ALONE = SamplingParams(max_tokens=0)


class VectorFields(TruncationFields, WorkFields):
    """A request for embeddings. `pooling` is an extension; its default is the server's option."""

    input: Prompts
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None
    add_special_tokens: bool | None = None
    pooling: Literal["mean", "last"] | None = None


async def embedded(service: Service, body: VectorFields) -> list[Embedding]:
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
