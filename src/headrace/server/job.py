"""One HTTP request's work at the engine: a generation for each of its prompts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

from headrace.core.params import SamplingParams
from headrace.core.types import NO_USER, UNFULFILLABLE, FinishReason, NewRequest
from headrace.errors import DeadlineExceeded, HeadraceError, InvalidParams
from headrace.server.latencies import StreamTimes
from headrace.server.prompts import Encoded
from headrace.server.schemas import SamplingFields
from headrace.server.seeing.record import current
from headrace.server.service import Service
from headrace.serving.completion import Delta
from headrace.serving.generation import Generation
from headrace.serving.outputs import RequestOutput

_MERGE_ITEMS = 64


class Job:
    """Made by `start`; `cancel` must be called when nobody reads on. Choice i of prompt p has the index p * n + i."""

    def __init__(
        self, name: str, generations: Sequence[Generation], n: int, times: StreamTimes | None = None
    ) -> None:
        self.name = name
        self._generations = tuple(generations)
        self._n = n
        self._times = times
        self._record = current()
        self.explain = False
        """The answer's usage says what the engine did, and why."""

    @classmethod
    async def start(
        cls,
        service: Service,
        kind: str,
        prompts: Sequence[Encoded],
        params: SamplingParams,
        body: SamplingFields,
        visible: frozenset[int] = frozenset(),
    ) -> Job:
        """Submit all prompts, or none: raises the first error after taking back the others. `visible` are special
        tokens that the text shows."""
        name = f"{kind}-{uuid.uuid4().hex}"
        times = service.latencies.stream() if body.stream else None
        news = [
            NewRequest(
                f"{name}-{number}", prompt.ids, params, body.priority or 0, body.user or NO_USER, body.cache_salt or "",
                queue_timeout_s=body.queue_timeout, timeout_s=body.timeout,
            )
            for number, prompt in enumerate(prompts)
        ]  # fmt: skip
        with service.gate.reserved(news):
            starting = [
                asyncio.ensure_future(
                    Generation.start(service.gate, service.tokenizer, new, prompt.text, visible)
                )
                for new, prompt in zip(news, prompts, strict=True)
            ]
            try:
                job = cls(name, await asyncio.gather(*starting), params.n, times)
            except BaseException:
                for task in starting:
                    task.cancel()
                for outcome in await asyncio.gather(*starting, return_exceptions=True):
                    if isinstance(outcome, Generation):
                        outcome.cancel()
                raise
        job.explain = bool(body.explain)
        if job._record is not None:
            lengths = [len(prompt.ids) for prompt in prompts]
            job._record.began(name, params, lengths, job._generations, bool(body.stream))
        return job

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """(choice, addition) as they come. Raises HeadraceError when the engine or one of the completions fails."""
        record = self._record
        try:
            async for number, delta in _merged([generation.deltas() for generation in self._generations]):
                if record is not None:
                    record.saw(number, delta)
                if delta.finish_reason is not None:
                    _check(delta)
                index = number * self._n + delta.index
                if self._times is not None and delta.text:
                    self._times.saw(index)
                yield index, delta
        except HeadraceError as error:
            if record is not None:
                record.error = error.code
            raise

    @property
    def results(self) -> list[RequestOutput]:
        """The result of each prompt, once `deltas` has ended."""
        return [generation.result for generation in self._generations if generation.result is not None]

    def cancel(self) -> None:
        """Free what is still held at the engine."""
        for generation in self._generations:
            generation.cancel()


def _check(delta: Delta) -> None:
    """Raises HeadraceError where a completion has ended otherwise than it should."""
    if delta.finish_reason == FinishReason.TIMEOUT.value:
        raise DeadlineExceeded(delta.error)
    if delta.error is not None and delta.error.startswith(UNFULFILLABLE):
        raise InvalidParams(delta.error)
    if delta.error is not None:
        raise HeadraceError(f"the engine failed on this request: {delta.error}")


async def _merged(sources: Sequence[AsyncIterator[Delta]]) -> AsyncIterator[tuple[int, Delta]]:
    """(number of the source, item) as they come; ends with the last source, or with the first error."""
    if len(sources) == 1:
        async for delta in sources[0]:
            yield 0, delta
        return
    queue: asyncio.Queue[tuple[int, Delta] | Exception | None] = asyncio.Queue(_MERGE_ITEMS)

    async def pump(number: int, source: AsyncIterator[Delta]) -> None:
        try:
            async for delta in source:
                await queue.put((number, delta))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    pumps = [asyncio.ensure_future(pump(number, source)) for number, source in enumerate(sources)]
    try:
        left = len(pumps)
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
