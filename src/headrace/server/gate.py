"""The only way from a route to the engine: a caller's requests, held to the rules and counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from headrace.core.types import NO_USER, NewRequest
from headrace.errors import HeadraceError, NotPermitted
from headrace.server.caller import Caller
from headrace.server.key_usage import Usage
from headrace.server.traffic import Traffic
from headrace.serving.admission import Cost
from headrace.serving.client import Submitter
from headrace.serving.stream import OutputStream


class Gate:
    """Submits for one caller, in one HTTP request. A Submitter."""

    def __init__(self, client: Submitter, traffic: Traffic, caller: Caller) -> None:
        self._client = client
        self._traffic = traffic
        self._caller = caller
        self._reserved: dict[str, Cost] = {}
        self._counted = False

    @contextmanager
    def reserved(self, news: Sequence[NewRequest]) -> Iterator[None]:
        """Make room for several requests at once, or for none; what was not submitted at the end gives it back.

        Raises what `submit` raises of itself.
        """
        self._reserve(news)
        try:
            yield
        finally:
            for new in news:
                cost = self._reserved.pop(new.request_id, None)
                if cost is not None:
                    self._give_back(cost, cost.tokens)

    async def submit(self, new: NewRequest) -> OutputStream:
        """Hand over a request under the caller's name, weight and salt.

        Raises what the engine's client raises, and of itself: NotPermitted for a priority above the caller's,
        InvalidParams and Overloaded as `Admission.take`, RateLimited where the caller has had enough.
        """
        if new.request_id not in self._reserved:
            self._reserve([new])
        cost = self._reserved.pop(new.request_id)
        try:
            stream = await self._client.submit(self._stamped(new))
        except BaseException as error:
            if isinstance(error, HeadraceError):
                self._usage.refused[error.code] += 1
            self._give_back(cost, cost.tokens)
            raise
        stream.when_ended(lambda: self._ended(stream, new, cost))
        return stream

    def abort(self, request_id: str, index: int | None = None, *, stopped: bool = False) -> None:
        self._client.abort(request_id, index, stopped=stopped)

    @property
    def _usage(self) -> Usage:
        return self._traffic.usage.of(self._caller.name)

    def _reserve(self, news: Sequence[NewRequest]) -> None:
        try:
            for new in news:
                self._check_priority(new)
            admission = self._traffic.admission
            costs = [_cost(new) if admission is None else admission.cost(new) for new in news]
            tokens = sum(cost.tokens for cost in costs)
            self._traffic.limiter.take_tokens(self._caller, tokens)
            if admission is not None:
                try:
                    admission.take(costs)
                except HeadraceError:
                    self._traffic.limiter.return_tokens(self._caller, tokens)
                    raise
        except HeadraceError as error:
            self._usage.refused[error.code] += 1
            raise
        self._reserved.update((new.request_id, cost) for new, cost in zip(news, costs, strict=True))
        if not self._counted:
            self._counted = True
            self._usage.requests += 1

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
            queue_timeout_s=_shorter(new.queue_timeout_s, rules.queue_timeout_s),
            timeout_s=_shorter(new.timeout_s, rules.request_timeout_s),
        )

    def _ended(self, stream: OutputStream, new: NewRequest, cost: Cost) -> None:
        used = stream.output_tokens
        if used or stream.scheduled:
            used += len(new.prompt)
            self._usage.prompt_tokens += len(new.prompt)
            self._usage.completion_tokens += stream.output_tokens
            self._usage.cached_tokens += stream.cached_tokens
        self._give_back(cost, cost.tokens - used)

    def _give_back(self, cost: Cost, unused: int) -> None:
        if self._traffic.admission is not None:
            self._traffic.admission.give_back(cost)
        self._traffic.limiter.return_tokens(self._caller, unused)


def _cost(new: NewRequest) -> Cost:
    return Cost(new.params.n, len(new.prompt) + new.params.n * (new.params.max_tokens or 0))


def _shorter(asked: float | None, limit: float | None) -> float | None:
    return limit if asked is None else asked if limit is None else min(asked, limit)
