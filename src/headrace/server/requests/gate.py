"""The only way from a route to the engine: a request is admitted to the queue, charged to its key, and counted.

The charge is an estimate that is corrected as the request runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from headrace.core.types import NO_USER, NewRequest
from headrace.errors import HeadraceError, NotPermitted
from headrace.server.access.keys import Caller, Usage
from headrace.server.access.rate_limit import MAX_WAIT_S
from headrace.server.access.traffic import Traffic
from headrace.server.requests.record import RequestRecord, current
from headrace.serving.client.base import Submitter
from headrace.serving.client.stream import OutputStream
from headrace.serving.requests.admission import Cost
from headrace.serving.requests.metering import Meter, Used

LEASE = 64
"""Output tokens that are charged at a time once a request has outgrown its estimate."""


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
