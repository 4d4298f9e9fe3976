"""One HTTP request's work at the engine: a generation for each of its prompts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from headrace.core.params import SamplingParams
from headrace.core.types import NO_USER, UNFULFILLABLE, FinishReason, NewRequest
from headrace.errors import DeadlineExceeded, HeadraceError, InvalidParams
from headrace.server.http.pace import Slices
from headrace.server.observability.latencies import StreamTimes
from headrace.server.observability.record import current
from headrace.server.openai.models import with_model_defaults
from headrace.server.openai.prompts import Encoded
from headrace.server.openai.sizes import HeldAnswer, bounded, check_parameters, size_of
from headrace.server.service import Service
from headrace.serving.requests.completion import Delta, entries
from headrace.serving.requests.generation import Generation
from headrace.serving.requests.outputs import RequestMetrics
from headrace.text.bad_words import with_bad_word_ids

MAX_TAKEN_ENTRIES = 2048
"""Tokens and log-probabilities after which what is left is taken in the next turn of the event loop. More than arrives
in a turn, see `process_client.MAX_TURN_BYTES`: who takes all the time never lags."""

DELTA_ENTRIES = 4
LAST_DELTA_ENTRIES = 24
"""What an addition takes beside its entries, and the last one of a completion, which is counted and measured, too."""

STARTED_A_TURN = 64
"""Completions that are handed to the engine in a turn of the event loop. IDS_A_COMPLETION ids or characters of a
request count for one more."""

IDS_A_COMPLETION = 1024


class Submission(Protocol):
    """What a request says of its work, beside the prompt and how to sample."""

    @property
    def stream(self) -> bool | None: ...
    @property
    def priority(self) -> int | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def queue_timeout(self) -> float | None: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def explain(self) -> bool | None: ...


class Job:
    """A source of (choice, addition); made by `start`. `cancel` must be called when nobody takes any more.

    Choice i of prompt p has the index p * n + i. Taking raises HeadraceError when the engine fails, or one of the
    completions does.
    """

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
        self.held: HeldAnswer | None = None
        """Memory of an answer that is sent whole; to be kept until it was sent."""
        self._left = set(range(len(self._generations)))  # prompts that are not exhausted
        self._ready: dict[int, None] = {}  # prompts with something to take, in the order in which it came
        self._error: HeadraceError | None = None
        self.waiting = False
        """See Source."""
        self.exhausted = not self._left
        """See Source."""
        self._listener: Callable[[], None] | None = None
        for number, generation in enumerate(self._generations):
            generation.listen(partial(self._came, number))

    @classmethod
    async def start(
        cls,
        service: Service,
        kind: str,
        prompts: Sequence[Encoded],
        params: SamplingParams,
        body: Submission,
        visible: frozenset[int] | None = None,
        echo: bool = False,
        prompt_ids: int = 0,
        pin: tuple[int, float] | None = None,
    ) -> Job:
        """Submit all prompts, or none: raises the first error after taking back the others.

        `visible` are special tokens that the text shows, see Completion. `echo`: the answer holds the prompts, too.
        `prompt_ids` is how often it holds the ids of each of them. `pin`: how many tokens of each prompt shall stay
        in the prefix cache, and for how many seconds.

        Raises InvalidParams for an answer that could be too large, see `answer_size`, and for parameters that are, and
        Overloaded where there is no memory for it.
        """
        params = with_bad_word_ids(params, service.tokenizer)
        check_parameters(params, len(prompts))
        lengths = [len(prompt.ids) for prompt in prompts]
        context = service.facts.max_model_len
        params = with_model_defaults(params, body, service.facts.sampling_defaults, lengths, context)
        params = bounded(params, lengths, context, echo=echo, stream=bool(body.stream), prompt_ids=prompt_ids)
        held = None if body.stream else HeldAnswer(service.answers, ids=prompt_ids > 0)
        if held is not None:
            held.add_prompts(lengths)
        name = f"{kind}-{uuid.uuid4().hex}"
        times = service.latencies.stream() if body.stream else None
        slices = Slices(STARTED_A_TURN)
        news: list[NewRequest] = []
        for number, prompt in enumerate(prompts):
            new = NewRequest(
                f"{name}-{number}", prompt.ids, params, body.priority or 0, body.user or NO_USER, body.cache_salt or "",
                queue_timeout_s=body.queue_timeout, timeout_s=body.timeout,
                cache_pin_tokens=0 if pin is None else pin[0], cache_pin_ttl_s=None if pin is None else pin[1],
            )  # fmt: skip
            news.append(new)
            await slices.add(1)
        async with service.gate.reserved(news):
            starting: list[asyncio.Future[Generation]] = []
            try:
                each = params.n + size_of(params) // IDS_A_COMPLETION
                for new in news:
                    task = asyncio.ensure_future(
                        Generation.start(service.gate, service.tokenizer, new, visible)
                    )
                    starting.append(task)
                    await slices.add(each + len(new.prompt) // IDS_A_COMPLETION)
                job = cls(name, await asyncio.gather(*starting), params.n, times)
            except BaseException:
                for one in starting:
                    one.cancel()
                for outcome in await asyncio.gather(*starting, return_exceptions=True):
                    if isinstance(outcome, Generation):
                        outcome.cancel()
                raise
        job.explain = bool(body.explain)
        job.held = held
        if job._record is not None:
            job._record.began(name, params, lengths, job._generations, bool(body.stream))
        return job

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
        """Times and counts of each prompt, once all is taken."""
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
        """Free what is still held at the engine. Nothing is taken any more."""
        for generation in self._generations:
            generation.cancel()
            generation.listen(None)

    def _came(self, number: int) -> None:
        """There is something to take of a prompt's generation."""
        self._ready[number] = None
        self.waiting = True
        if self._listener is not None:
            self._listener()

    def _take(self, number: int, items: list[tuple[int, Delta]]) -> int:
        """Take what one prompt's generation has; gives the entries of it."""
        generation, record, times = self._generations[number], self._record, self._times
        deltas = generation.take()
        for delta in deltas:
            choice = number * self._n + delta.index
            if record is not None:
                record.saw(choice, delta)
            if delta.finish_reason is not None:
                _check(delta)
            if times is not None and delta.text:
                times.saw(choice)
            if self.held is not None:
                self.held.add(delta)
            items.append((choice, delta))
        if len(deltas) == 1 and deltas[0].finish_reason is None and not generation.waiting:
            return DELTA_ENTRIES + entries(deltas[0])  # as nearly always
        if generation.exhausted:
            self._left.discard(number)
            self.exhausted = not self._left
        elif generation.waiting:
            self._ready[number] = None
            self.waiting = True
        return sum(map(_weight, deltas))


def _weight(delta: Delta) -> int:
    return entries(delta) + (DELTA_ENTRIES if delta.finish_reason is None else LAST_DELTA_ENTRIES)


def _check(delta: Delta) -> None:
    """Raises HeadraceError where a completion has ended otherwise than it should."""
    if delta.finish_reason == FinishReason.TIMEOUT.value:
        raise DeadlineExceeded(delta.error)
    if delta.error is not None and delta.error.startswith(UNFULFILLABLE):
        raise InvalidParams(delta.error)
    if delta.error is not None:
        raise HeadraceError(f"the engine failed on this request: {delta.error}")
