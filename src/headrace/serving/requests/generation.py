"""One request from submission to result: an engine's outputs as text, whoever reads them."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.types import NewRequest
from headrace.serving.client.base import Submitter
from headrace.serving.client.stream import OutputStream
from headrace.serving.requests.completion import Delta
from headrace.serving.requests.output_processor import PendingRequest
from headrace.serving.requests.outputs import RequestMetrics
from headrace.text.tokenizer import Tokenizer


class Generation:
    """A request that the engine has accepted, as a source of additions to its completions; made by `start`.

    Taking raises EngineDead if the engine ends before the request. Whoever stops early must call `cancel`.
    """

    def __init__(self, client: Submitter, stream: OutputStream, pending: PendingRequest) -> None:
        self._client = client
        self._stream = stream
        self.pending = pending
        stream.count_reads(pending)
        self.metrics: RequestMetrics | None = None
        """Times and counts, known when all is taken."""

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
            elif delta is not None and delta.finish_reason is not None:  # a stop string, found here
                self._client.abort(output.request_id, output.index, stopped=True)
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
        """Free what the request holds at the engine; does nothing once it has ended."""
        if not self._stream.ended:
            self._client.abort(self._stream.request_id)
        self._stream.finish()
