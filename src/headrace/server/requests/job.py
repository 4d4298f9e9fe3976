"""One HTTP request's work at the engine: a generation for each of its prompts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from starlette.types import Receive

from headrace.core.params import SamplingParams
from headrace.core.types import UNFULFILLABLE, FinishReason, NewRequest
from headrace.errors import DeadlineExceeded, HeadraceError, InvalidParams
from headrace.server.http.pace import Slices, while_connected
from headrace.server.requests.bounds import HeldAnswer, bounded, check_parameters, ids_and_chars
from headrace.server.requests.fields import WorkFields
from headrace.server.requests.prompts import Encoded
from headrace.server.requests.record import current
from headrace.server.requests.service import Service
from headrace.serving.client.source import arrivals
from headrace.serving.requests.completion import Delta, entries
from headrace.serving.requests.generation import Generation
from headrace.serving.requests.outputs import RequestMetrics
from headrace.text.bad_words import with_bad_word_ids

MAX_TAKEN_ENTRIES = 2048
"""Tokens and log-probabilities per turn of the event loop; the rest is taken in the next one. More than arrives in a
turn (`serving.client.process.MAX_TURN_BYTES`), so that a reader who keeps up never lags."""

DELTA_ENTRIES = 4
LAST_DELTA_ENTRIES = 24
"""What an addition counts beside its entries; more for the last one of a completion, which is also recorded."""

_STARTED_A_TURN = 64
"""Completions that are submitted in a turn of the event loop. _IDS_A_COMPLETION ids or characters of a request count
for one more."""

_IDS_A_COMPLETION = 1024

Started = TypeVar("Started")


async def new_requests(
    name: str, prompts: Sequence[Encoded], params: SamplingParams, body: WorkFields, **more: Any
) -> list[NewRequest]:
    """A request to the engine for each prompt; `more` are further fields of them."""
    slices = Slices(_STARTED_A_TURN)
    news: list[NewRequest] = []
    for number, prompt in enumerate(prompts):
        new = NewRequest(
            f"{name}-{number}", prompt.ids, params, body.priority or 0, body.end_user, body.cache_salt or "",
            queue_timeout_s=body.queue_timeout, timeout_s=body.timeout, **more,
        )  # fmt: skip
        news.append(new)
        await slices.add(1)
    return news


async def started(
    service: Service,
    news: Sequence[NewRequest],
    start: Callable[[NewRequest], Awaitable[Started]],
    cancel: Callable[[Started], None] = lambda _: None,
) -> list[Started]:
    """The results of `start`, which submits a request, for all requests; if one fails or the caller leaves, all are
    cancelled. Raises the first error."""
    async with service.gate.reserved(news):
        tasks: list[asyncio.Future[Started]] = []
        slices = Slices(_STARTED_A_TURN)
        params = news[0].params  # of all of them
        each = params.n + sum(ids_and_chars(params)) // _IDS_A_COMPLETION
        try:
            for new in news:
                tasks.append(asyncio.ensure_future(start(new)))
                await slices.add(each + len(new.prompt) // _IDS_A_COMPLETION)
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(outcome, BaseException):
                    cancel(outcome)
            raise


class Job:
    """A source of (choice, addition); made by `start`. Call `cancel` when nothing more will be taken.

    Choice i of prompt p has the index p * n + i. `take` raises HeadraceError when the engine or one of the
    completions fails. `held` is the memory of an answer that is sent whole, to be kept until it was sent.
    """

    def __init__(
        self, name: str, generations: Sequence[Generation], n: int, held: HeldAnswer | None = None
    ) -> None:
        self.name = name
        self.held = held
        self._generations = tuple(generations)
        self._n = n
        self._record = current()
        self._left = set(range(len(self._generations)))  # prompts that are not exhausted
        self._ready: dict[int, None] = {}  # prompts with something to take, in the order of arrival
        self._error: HeadraceError | None = None
        self.waiting = False
        """See Source."""
        self.exhausted = not self._left
        """See Source."""
        self._listener: Callable[[], None] | None = None
        for number, generation in enumerate(self._generations):
            generation.listen(partial(self._arrived, number))

    @classmethod
    async def start(
        cls,
        service: Service,
        kind: str,
        prompts: Sequence[Encoded],
        params: SamplingParams,
        body: WorkFields,
        stream: bool,
        visible: frozenset[int] | None = None,
        echo: bool = False,
        prompt_ids: int = 0,
        pin: tuple[int, float] | None = None,
    ) -> Job:
        """Submit all prompts, or none: raises the first error after cancelling the others.

        `visible` are special tokens that the text shows, see Completion. `echo`: the answer contains the prompts.
        `prompt_ids` is how often it contains the ids of each of them. `pin`: how many tokens of each prompt to keep
        in the prefix cache, and for how many seconds.

        Raises InvalidParams for an answer or parameters beyond their bounds, and Overloaded for lack of memory.
        """
        params = with_bad_word_ids(params, service.tokenizer)
        check_parameters(params, len(prompts))
        lengths = [len(prompt.ids) for prompt in prompts]
        context = service.facts.max_model_len
        params = with_model_defaults(params, body, service.facts.sampling_defaults, lengths, context)
        params = bounded(params, lengths, context, echo=echo, stream=stream, prompt_ids=prompt_ids)
        held = None if stream else HeldAnswer(service.answers, lengths if prompt_ids else None)
        name = f"{kind}-{uuid.uuid4().hex}"
        pinned = {} if pin is None else {"cache_pin_tokens": pin[0], "cache_pin_ttl_s": pin[1]}
        news = await new_requests(name, prompts, params, body, **pinned)

        def submit(new: NewRequest) -> Awaitable[Generation]:
            return Generation.start(service.gate, service.tokenizer, new, visible)

        generations = await started(service, news, submit, Generation.cancel)
        job = cls(name, generations, params.n, held)
        if job._record is not None:
            job._record.began(name, params, lengths, job._generations, stream)
        return job

    async def read(self, receive: Receive, add: Callable[[int, Delta], object]) -> None:
        """Pass all additions to `add`. Cancels the work when the caller leaves, then raises CallerLeft."""

        async def all_of_it() -> None:
            async for items in arrivals(self):
                for index, delta in items:
                    add(index, delta)

        try:
            await while_connected(receive, all_of_it())
        finally:
            self.cancel()

    def listen(self, call: Callable[[], None] | None) -> None:
        """See Source."""
        self._listener = call
        if call is not None and (self.waiting or self.exhausted):
            call()

    def take(self) -> list[tuple[int, Delta]]:
        """See Source."""
        items: list[tuple[int, Delta]] = []
        try:
            if self._error is not None:
                raise self._error
            ready, self._ready = self._ready, {}
            self.waiting = False
            left = MAX_TAKEN_ENTRIES
            while ready:
                if left <= 0:
                    self._ready = ready | self._ready
                    self.waiting = True
                    break
                number = next(iter(ready))
                del ready[number]
                left -= self._take(number, items)
        except HeadraceError as error:
            self.waiting = True
            self._error = error
            if not items:
                if self._record is not None:
                    self._record.error = error.code
                raise
        return items

    @property
    def metrics(self) -> list[RequestMetrics]:
        """Times and counts of each prompt, complete when the job is exhausted."""
        return [generation.metrics for generation in self._generations if generation.metrics is not None]

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache, known from the first token on."""
        return sum(generation.num_cached_tokens for generation in self._generations)

    @property
    def pinned_tokens(self) -> int:
        """Prompt tokens that stay pinned in the prefix cache, known from the first token on."""
        return sum(generation.num_pinned_tokens for generation in self._generations)

    def cancel(self) -> None:
        """Free what the engine still holds. Call no `take` after it."""
        for generation in self._generations:
            generation.cancel()
            generation.listen(None)

    def _arrived(self, number: int) -> None:
        """A prompt's generation has something to take."""
        self._ready[number] = None
        self.waiting = True
        if self._listener is not None:
            self._listener()

    def _take(self, number: int, items: list[tuple[int, Delta]]) -> int:
        """Take from one prompt's generation. Returns the number of entries."""
        generation, record = self._generations[number], self._record
        deltas = generation.take()
        for delta in deltas:
            choice = number * self._n + delta.index
            if record is not None:
                record.on_delta(choice, delta)
            if delta.finish_reason is not None:
                _check(delta)
            if self.held is not None:
                self.held.add(delta)
            items.append((choice, delta))
        if len(deltas) == 1 and deltas[0].finish_reason is None and not generation.waiting:
            return DELTA_ENTRIES + entries(deltas[0])  # the usual case
        if generation.exhausted:
            self._left.discard(number)
            self.exhausted = not self._left
        elif generation.waiting:
            self._ready[number] = None
            self.waiting = True
        return sum(map(_weight, deltas))


def with_model_defaults(
    params: SamplingParams,
    body: object,
    defaults: Mapping[str, float],
    lengths: Sequence[int],
    context: int | None,
) -> SamplingParams:
    """`params` with the model's own `defaults` where `body` sets nothing, as in vLLM.

    The default `max_tokens` limits every answer. If a prompt of `lengths` tokens leaves less room in the context, the
    limit is the room that is left.
    """
    changed: dict[str, float | int | None] = {
        name: value
        for name, value in defaults.items()
        if name != "max_tokens" and getattr(body, name, None) is None
    }
    limit = defaults.get("max_tokens")
    if limit is not None and (params.max_tokens is None or params.max_tokens > limit):
        room = limit if context is None else min(limit, context - max(lengths, default=0))
        changed["max_tokens"] = max(room, params.min_tokens) if room > 0 else params.max_tokens
    return replace(params, **changed) if changed else params  # type: ignore[arg-type]


def _weight(delta: Delta) -> int:
    return entries(delta) + (DELTA_ENTRIES if delta.finish_reason is None else LAST_DELTA_ENTRIES)


def _check(delta: Delta) -> None:
    """Raises HeadraceError if a completion was ended by a fault or a deadline."""
    if delta.finish_reason == FinishReason.TIMEOUT.value:
        raise DeadlineExceeded(delta.error)
    if delta.error is not None and delta.error.startswith(UNFULFILLABLE):
        raise InvalidParams(delta.error)
    if delta.error is not None:
        raise HeadraceError(f"the engine failed on this request: {delta.error}")
