"""One request from submission to result: a generation as text, or an embedding."""

from __future__ import annotations

import array
from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.types import FinishReason, NewRequest
from headrace.core.vectors import floats
from headrace.errors import DeadlineExceeded, HeadraceError
from headrace.serving.client.base import Submitter
from headrace.serving.client.source import arrivals
from headrace.serving.client.stream import OutputStream
from headrace.serving.requests.completion import Delta
from headrace.serving.requests.output_processor import PendingRequest
from headrace.serving.requests.outputs import RequestMetrics
from headrace.text.tokenizer import Tokenizer


class Generation:
    """A request that the engine has accepted, as a source of additions to its completions; made by `start`.

    `take` raises EngineDead if the engine ends before the request. A reader that stops early must call `cancel`.
    """

    def __init__(self, client: Submitter, stream: OutputStream, pending: PendingRequest) -> None:
        self._client = client
        self._stream = stream
        self.pending = pending
        stream.count_reads(pending)
        self.metrics: RequestMetrics | None = None
        """Times and counts, known when everything has been taken."""

    @classmethod
    async def start(
        cls,
        client: Submitter,
        tokenizer: Tokenizer | None,
        new: NewRequest,
        visible: frozenset[int] | None = None,
    ) -> Generation:
        """Submit a request; see PendingRequest for `visible`.

        Raises what `Submitter.submit` and PendingRequest raise.
        """
        pending = PendingRequest(new, tokenizer, visible)
        return cls(client, await client.submit(new), pending)

    def listen(self, call: Callable[[], None] | None) -> None:
        """See Source."""
        self._stream.listen(call)

    def take(self) -> list[Delta]:
        """See Source."""
        deltas: list[Delta] = []
        pending = self.pending
        for output in self._stream.take():
            delta = pending.take(output)
            if output.finish_reason is not None:
                if pending.ended:
                    self.metrics = pending.metrics()
            elif delta is not None and delta.finish_reason is not None and not self._stream.ended:
                # A stop string, found here. Once the stream has ended, its id may be another request's.
                self._client.abort(self._stream.request_id, output.index, stopped=True)
            if delta is not None:
                deltas.append(delta)
        if self.metrics is not None:
            self._stream.finish()
        return deltas

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens taken from the prefix cache, known from the first token on."""
        return self._stream.num_cached_tokens

    @property
    def num_pinned_tokens(self) -> int:
        """Prompt tokens that stay pinned in the prefix cache, known from the first token on."""
        return self._stream.num_pinned_tokens

    @property
    def waiting(self) -> bool:
        """See Source."""
        return self._stream.waiting

    @property
    def exhausted(self) -> bool:
        """See Source."""
        return self._stream.exhausted

    def cancel(self) -> None:
        """Abort the request at the engine; does nothing once it has ended."""
        if not self._stream.ended:
            self._client.abort(self._stream.request_id)
        self._stream.finish()


@dataclass(frozen=True, slots=True)
class Embedding:
    """A prompt's vector before scaling, the number of the prompt's tokens, and how many of them were cached."""

    vector: array.array[float]
    num_prompt_tokens: int
    num_cached_tokens: int = 0


async def embed(client: Submitter, new: NewRequest) -> Embedding:
    """The vector of a request with `pooling`. Cancelling aborts the request.

    Raises what `Submitter.submit` raises, DeadlineExceeded, and HeadraceError if the engine fails on this request.
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
