"""One embedding request at an engine, from submission to vector, and vectors as bytes."""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.types import FinishReason, NewRequest
from headrace.errors import DeadlineExceeded, HeadraceError
from headrace.serving.client.base import Submitter
from headrace.serving.client.source import arrivals


def floats(data: bytes) -> array.array[float]:
    """The numbers of a core output's `pooled`: float32, little-endian."""
    values = array.array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def packed(vector: array.array[float]) -> bytes:
    """The other way round; OpenAI's base64 form holds the same bytes."""
    if sys.byteorder == "little":
        return vector.tobytes()
    swapped = array.array("f", vector)
    swapped.byteswap()
    return swapped.tobytes()


def shaped(vector: Sequence[float], dimensions: int | None, normalize: bool) -> array.array[float]:
    """The first `dimensions` numbers, scaled to length 1 if asked; a vector of zeros stays as it is."""
    kept = array.array("f", vector if dimensions is None else vector[:dimensions])
    if not normalize:
        return kept
    length = math.sqrt(math.fsum(value * value for value in kept))
    return kept if length == 0.0 else array.array("f", (value / length for value in kept))


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
