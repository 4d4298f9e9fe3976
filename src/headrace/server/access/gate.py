"""The only way from a route to the engine: what a request may take is bounded, admitted, charged and counted here.

A request's answer and parameters are bounded first. The size of an answer is counted in entries: a position with its
token is one, each alternative at it another, and each id of a prompt that the answer shows one more. An entry takes up
to about 90 bytes as JSON, so the largest answer is about 100 MB. Parameters count because every completion has its own
copy: a list of 65,000 token ids is 400 KB of a body, but gigabytes for 1,024 prompts with n = 2.

Then the request is admitted to the queue and charged to its key, by an estimate that is corrected as it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from headrace.core.params import SamplingParams
from headrace.core.types import NO_USER, NewRequest
from headrace.errors import HeadraceError, InvalidParams, NotPermitted, Overloaded
from headrace.server.access.keys import Caller, Usage
from headrace.server.access.rate_limit import MAX_WAIT_S
from headrace.server.access.traffic import Traffic
from headrace.server.observability.record import RequestRecord, current
from headrace.serving.client.base import Submitter
from headrace.serving.client.stream import OutputStream
from headrace.serving.requests.admission import Cost
from headrace.serving.requests.completion import Delta, entries
from headrace.serving.requests.metering import Meter, Used

MAX_ENTRIES = 2**20
"""Of the answer to one HTTP request: over all of its prompts and choices."""

MAX_HELD_BYTES = 512 * 2**20
"""About how much memory all answers that are sent whole may take, from their first token until they are sent. Beyond
it, an answer may have at most LEAST_HELD_BYTES."""

LEAST_HELD_BYTES = 2**20

MAX_BYTES = 2**23
"""Of one request's parameters: over all of its completions."""

_ENTRY_BYTES = 96
_ID_BYTES = 8
_WORD_IDS = 24  # memory of a bad word beside its ids, in ids

LEASE = 64
"""Output tokens that are charged at a time once a request has outgrown its estimate."""


def bounded(
    params: SamplingParams,
    prompts: Sequence[int],
    context: int | None,
    *,
    echo: bool,
    stream: bool,
    prompt_ids: int = 0,
) -> SamplingParams:
    """Parameters under which the answer to prompts of these lengths stays within MAX_ENTRIES.

    Only a whole answer without `max_tokens` is changed: it ends at the bound. `context` is the longest sequence, None
    without a bound. `prompt_ids` is how often the answer contains the ids of each prompt. Streams without
    `max_tokens` are not held in memory, so only their prompts count.

    Raises InvalidParams if the request exceeds the bound.
    """
    each = params.n * len(prompts) * (1 + (params.logprobs or 0))
    scored = prompt_ids * sum(prompts)
    if echo or params.prompt_logprobs is not None:
        scored += params.n * sum(prompts) * (1 + (params.prompt_logprobs or 0))
    room = MAX_ENTRIES - scored
    asked = each * (params.max_tokens or 0)
    if asked > room or (params.max_tokens is None and each > room):
        raise InvalidParams(
            f"the answer may come to {scored + asked} tokens and log-probabilities, but one request may have "
            f"{MAX_ENTRIES}: lower max_tokens, n or logprobs, send fewer prompts at once, or leave out return_token_ids"
        )
    most = room // each
    if params.max_tokens is not None or stream or (context is not None and context - min(prompts) <= most):
        return params
    return replace(params, max_tokens=most)


def check_parameters(params: SamplingParams, prompts: int) -> None:
    """Raises InvalidParams if the parameters of so many prompts take more than about MAX_BYTES together."""
    ids, chars = ids_and_chars(params)
    size = prompts * (params.n * _ID_BYTES * ids + chars)
    if size > MAX_BYTES:
        raise InvalidParams(
            f"lists of token ids, bad words, stop strings and grammars of all completions come to {size} bytes, but "
            f"one request may have {MAX_BYTES}: shorten them, or send fewer prompts at once"
        )


def ids_and_chars(params: SamplingParams) -> tuple[int, int]:
    """Numbers of token ids and of characters in the parameters of one prompt."""
    lists = (params.logit_bias, params.allowed_token_ids, params.banned_token_ids, params.stop_token_ids)
    ids = sum(len(each) for each in lists if each is not None)
    ids += sum(_WORD_IDS + len(word) for word in params.bad_words)
    chars = sum(map(len, params.stop)) + (0 if params.grammar is None else len(params.grammar.source))
    return ids, chars


class HeldAnswers:
    """Memory of all answers that are sent whole, in bytes."""

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self.bytes = 0
        self.most = most


class HeldAnswer:
    """Memory of one such answer; returned when the last reference to this object is gone.

    prompts: lengths of the prompts whose ids it contains; None for an answer without token ids. Raises Overloaded.
    """

    def __init__(self, answers: HeldAnswers, prompts: Sequence[int] | None = None) -> None:
        self._answers = answers
        self._id_bytes = 0 if prompts is None else _ID_BYTES
        self._bytes = 0
        self.take(self._id_bytes * sum(prompts or ()))

    def add(self, delta: Delta) -> None:
        """Count an addition. Raises Overloaded if there is no memory for it."""
        size = len(delta.text) + self._id_bytes * len(delta.token_ids)
        if delta.logprobs or delta.prompt_logprobs:
            size += _ENTRY_BYTES * entries(delta)
        self.take(size)

    def take(self, size: int) -> None:
        """Count so many bytes. Raises Overloaded."""
        self._bytes += size
        self._answers.bytes += size
        if self._answers.bytes > self._answers.most and self._bytes > LEAST_HELD_BYTES:
            raise Overloaded(
                "the answers that are being put together take too much memory: try again later, or ask for a stream"
            )

    def __del__(self) -> None:
        self._answers.bytes -= self._bytes


class Reservation:
    """A Meter. Charges `cost` on admission, more as the output outgrows it, and in the end what was used.

    The queue's room is returned when the request has ended for its caller. The key's tokens, usage and metrics are
    settled when the engine has reported what it computed: a step later if the caller left.
    """

    def __init__(
        self, traffic: Traffic, caller: Caller, new: NewRequest, cost: Cost, record: RequestRecord | None
    ) -> None:
        self._traffic = traffic
        self._caller = caller
        self._new = new
        self._cost = cost
        self._record = record
        self._paid = cost.output
        self._held = True  # of the queue
        self._settled = False

    def renew(self, output_tokens: int) -> int:
        """See Meter."""
        lacking = output_tokens - self._paid
        if lacking > 0:
            more = -(-lacking // LEASE) * LEASE
            self._paid += more
            if self._traffic.admission is not None:
                self._traffic.admission.charge(more)
            self._traffic.limiter.charge_tokens(self._caller, more)
        return self._paid

    def release(self) -> None:
        """See Meter."""
        if self._held and self._traffic.admission is not None:
            self._traffic.admission.give_back(self._cost.completions, self._cost.prompt + self._paid)
        self._held = False

    def settle(self, used: Used) -> None:
        """See Meter."""
        if self._settled:
            return
        self._settled = True
        self._traffic.limiter.return_tokens(self._caller, self._cost.prompt + self._paid - used.total)
        usage = self._traffic.usage.of(self._caller.name)
        usage.prompt_tokens += used.prompt_tokens
        usage.cached_tokens += used.cached_tokens
        usage.completion_tokens += used.output_tokens
        if self._record is not None:
            self._record.settled(used)
        if used.output_tokens:
            self._traffic.estimate.learn(used.output_tokens / self._new.params.n)

    def cancel(self) -> None:
        """Nothing was submitted, or the engine has refused it: nothing was computed."""
        self.release()
        self.settle(Used())


class Gate:
    """Submits for one caller, in one HTTP request. A Submitter."""

    def __init__(self, client: Submitter, traffic: Traffic, caller: Caller) -> None:
        self._client = client
        self._traffic = traffic
        self._caller = caller
        self._reserved: dict[str, Reservation] = {}
        self._waited_s = 0.0
        self._counted = False

    @asynccontextmanager
    async def reserved(self, news: Sequence[NewRequest]) -> AsyncIterator[None]:
        """Admit several requests, or none. Those that were not submitted at the end of the block are cancelled.

        Waits if the caller's key will have the tokens soon. Raises what `submit` raises of itself.
        """
        await self._reserve(news)
        try:
            yield
        finally:
            for new in news:
                unused = self._reserved.pop(new.request_id, None)
                if unused is not None:
                    unused.cancel()

    async def submit(self, new: NewRequest, meter: Meter | None = None) -> OutputStream:
        """Submit a request under the caller's name, weight and salt; `meter` is ignored for a Reservation.

        Raises what the engine's client raises, and of itself: NotPermitted for a priority above the caller's,
        InvalidParams and Overloaded as `Admission.take`, RateLimited if the caller is over its limit.
        """
        if new.request_id not in self._reserved:
            await self._reserve([new])
        reservation = self._reserved.pop(new.request_id)
        try:
            return await self._client.submit(self._stamped(new), reservation)
        except Exception as error:
            if isinstance(error, HeadraceError):
                self._usage.refused[error.code] += 1
            reservation.cancel()
            raise

    def abort(self, request_id: str, index: int | None = None, *, stopped: bool = False) -> None:
        self._client.abort(request_id, index, stopped=stopped)

    @property
    def _usage(self) -> Usage:
        return self._traffic.usage.of(self._caller.name)

    async def _reserve(self, news: Sequence[NewRequest]) -> None:
        try:
            for new in news:
                self._check_priority(new)
            costs = [self._traffic.estimate.cost(new) for new in news]
            if self._traffic.admission is not None:
                self._traffic.admission.take(costs)
        except HeadraceError as error:
            self._usage.refused[error.code] += 1
            raise
        record = current()
        reservations = [
            Reservation(self._traffic, self._caller, new, cost, record)
            for new, cost in zip(news, costs, strict=True)
        ]
        try:
            await self._wait_for_tokens(sum(cost.tokens for cost in costs), self._patience_s(news))
        except BaseException as error:
            for reservation in reservations:
                reservation.release()
            if isinstance(error, HeadraceError):
                self._usage.refused[error.code] += 1
            raise
        self._reserved.update((new.request_id, one) for new, one in zip(news, reservations, strict=True))
        if not self._counted:
            self._counted = True
            self._usage.requests += 1

    async def _wait_for_tokens(self, tokens: int, patience_s: float) -> None:
        """Take tokens of the caller's key, in order of arrival. Raises RateLimited."""
        limiter = self._traffic.limiter
        wait_s = limiter.reserve_tokens(self._caller, tokens, patience_s)
        if wait_s <= 0:
            return
        try:
            await asyncio.sleep(wait_s)
        except BaseException:
            limiter.return_tokens(self._caller, tokens)
            raise
        self._waited_s += wait_s

    def _patience_s(self, news: Sequence[NewRequest]) -> float:
        """The longest time that these requests may wait for tokens."""
        rules = self._traffic.rules
        limits = [rules.queue_timeout_s, rules.request_timeout_s]
        limits += [limit for new in news for limit in (new.queue_timeout_s, new.timeout_s)]
        return min([MAX_WAIT_S, *(limit for limit in limits if limit is not None)])

    def _check_priority(self, new: NewRequest) -> None:
        most = self._caller.max_priority
        if most is not None and new.priority < most:
            raise NotPermitted(
                f"this key's requests may have the priority {most} at most, not {new.priority}: "
                "lower numbers are more urgent"
            )

    def _stamped(self, new: NewRequest) -> NewRequest:
        caller, rules = self._caller, self._traffic.rules
        return replace(
            new,
            user=caller.name or new.user or NO_USER,
            weight=caller.weight,
            cache_salt=self._traffic.salt(caller, new.cache_salt),
            queue_timeout_s=self._left_s(_shorter(new.queue_timeout_s, rules.queue_timeout_s)),
            timeout_s=self._left_s(_shorter(new.timeout_s, rules.request_timeout_s)),
        )

    def _left_s(self, timeout_s: float | None) -> float | None:
        """The rest of a time limit after the wait for the key's tokens."""
        return None if timeout_s is None else max(0.0, timeout_s - self._waited_s)


def _shorter(asked: float | None, limit: float | None) -> float | None:
    return limit if asked is None else asked if limit is None else min(asked, limit)
