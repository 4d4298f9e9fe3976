"""One embedding request at an engine, from submission to vector."""

from __future__ import annotations

import array
from dataclasses import dataclass

from headrace.core.types import FinishReason, NewRequest
from headrace.core.vectors import floats
from headrace.errors import DeadlineExceeded, HeadraceError
from headrace.serving.client.base import Submitter
from headrace.serving.client.source import arrivals


@dataclass(frozen=True, slots=True)
class Embedding:
    """A prompt's vector as the model gives it, the number of the prompt's tokens, and how many of these were cached."""

    vector: array.array[float]
    num_prompt_tokens: int
    num_cached_tokens: int = 0


async def embed(client: Submitter, new: NewRequest) -> Embedding:
    """The vector of a request with `pooling`. Frees what it holds at the engine when it is cancelled.

    Raises what `Submitter.submit` raises, DeadlineExceeded, and HeadraceError where the engine fails on this request.
    """
    stream = await client.submit(new)
    try:
        async for outputs in arrivals(stream):
            for output in outputs:
                if output.finish_reason is FinishReason.TIMEOUT:
                    raise DeadlineExceeded(output.error)
                if output.error is not None:
                    raise HeadraceError(f"the engine failed on this request: {output.error}")
                if output.pooled is not None:
                    cached = 0 if output.stats is None else output.stats.num_cached
                    return Embedding(floats(output.pooled), len(new.prompt), cached)
        raise HeadraceError("the engine ended this request without an embedding")
    finally:
        if not stream.ended:
            client.abort(new.request_id)
        stream.finish()
