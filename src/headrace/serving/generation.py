"""One request from submission to result: an engine's outputs as text, whoever reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from headrace.core.types import NewRequest
from headrace.serving.client import Submitter
from headrace.serving.completion import Delta
from headrace.serving.output_processor import OutputProcessor
from headrace.serving.outputs import RequestOutput
from headrace.serving.stream import OutputStream
from headrace.text.tokenizer import Tokenizer


class Generation:
    """A request that the engine has accepted; made by `start`. Whoever stops reading early must call `cancel`."""

    def __init__(self, client: Submitter, stream: OutputStream, processor: OutputProcessor) -> None:
        self._client = client
        self._stream = stream
        self._processor = processor
        self.result: RequestOutput | None = None
        """The whole result, known when `deltas` has ended."""

    @classmethod
    async def start(
        cls,
        client: Submitter,
        tokenizer: Tokenizer | None,
        new: NewRequest,
        prompt: str | None = None,
        visible: frozenset[int] = frozenset(),
    ) -> Generation:
        """Submit a request; see `OutputProcessor.add` for `prompt` and `visible`.

        Raises what `Submitter.submit` and `OutputProcessor.add` raise.
        """
        processor = OutputProcessor(tokenizer)
        processor.add(new, prompt, visible)
        return cls(client, await client.submit(new), processor)

    async def deltas(self) -> AsyncIterator[Delta]:
        """Additions to the completions as they come. Raises EngineDead if the engine ends before the request."""
        async for outputs in self._stream:
            progress = self._processor.process(outputs)
            for request_id, index in progress.to_stop:
                self._client.abort(request_id, index, stopped=True)
            for finished in progress.finished:
                self.result = finished
            for delta in progress.deltas:
                yield delta

    def cancel(self) -> None:
        """Free what the request holds at the engine; does nothing once it has ended."""
        if self.result is None:
            self._client.abort(self._stream.request_id)
