"""Requests and tokens a minute for each caller, as token buckets.

A request takes its tokens from the bucket at once, even if that leaves it below zero, and then waits until the bucket
would have held them (reservations, as in Go's x/time/rate and Guava's RateLimiter). So the requests of one caller get
their tokens in order of arrival, and the wait is known in advance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.errors import RateLimited
from headrace.server.access.keys import Caller
from headrace.serving.system import MONOTONIC, Clock

MAX_WAIT_S = 10.0
"""A request that would wait longer for its caller's tokens is refused."""

_MINUTE_S = 60.0


class Bucket:
    """Holds up to `per_minute` and refills at that rate. The level may be negative."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._seen = now

    def set_rate(self, per_minute: int, now: float) -> None:
        """Change the limit; what was used stays used."""
        used = self.per_minute - self.level(now)
        self.per_minute = per_minute
        self._level = per_minute - used

    def level(self, now: float) -> float:
        filled = self._level + (now - self._seen) * self.per_minute / _MINUTE_S
        self._level, self._seen = min(float(self.per_minute), filled), now
        return self._level

    def add(self, amount: float, now: float) -> None:
        self._level = min(float(self.per_minute), self.level(now) + amount)

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until there is `amount`, or until the bucket is full if its size is less."""
        lacking = min(amount, float(self.per_minute)) - self.level(now)
        return max(0.0, lacking * _MINUTE_S / self.per_minute)


@dataclass(frozen=True, slots=True)
class Limit:
    """The state of one limit, for response headers."""

    kind: str
    per_minute: int
    remaining: int
    reset_s: float


class RateLimiter:
    """Buckets by the caller's name; they survive a change of keys."""

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def take_request(self, caller: Caller) -> None:
        """Count one request. Raises RateLimited, with the time until the next one is allowed."""
        self._take(caller, "requests", caller.requests_per_minute, 1)

    def reserve_tokens(self, caller: Caller, tokens: int, patience_s: float = MAX_WAIT_S) -> float:
        """Take tokens for a request; returns the seconds to wait before it may run. Raises RateLimited, and takes
        nothing, if they are more than `patience_s`.

        A request of more than a minute's tokens needs a full bucket, and later ones wait for the rest.
        """
        return self._take(caller, "tokens", caller.tokens_per_minute, tokens, patience_s)

    def charge_tokens(self, caller: Caller, tokens: int) -> None:
        """Take tokens for a running request; later requests wait for the bucket to refill."""
        self.return_tokens(caller, -tokens)

    def return_tokens(self, caller: Caller, tokens: int) -> None:
        """Return reserved tokens that were not used."""
        bucket = self._buckets.get((caller.name, "tokens"))
        if bucket is not None:
            bucket.add(tokens, self._clock())

    def limits(self, caller: Caller) -> list[Limit]:
        """The state of each of the caller's limits."""
        now, found = self._clock(), []
        for kind, per_minute in (
            ("requests", caller.requests_per_minute),
            ("tokens", caller.tokens_per_minute),
        ):
            if per_minute is not None:
                bucket = self._bucket(caller, kind, per_minute, now)
                left = math.floor(max(0.0, bucket.level(now)))
                found.append(Limit(kind, per_minute, left, bucket.wait_s(per_minute, now)))
        return found

    def keep(self, names: frozenset[str]) -> None:
        """Delete the buckets of all other callers."""
        self._buckets = {at: bucket for at, bucket in self._buckets.items() if at[0] in names}

    def _take(
        self, caller: Caller, kind: str, per_minute: int | None, amount: int, patience_s: float = 0.0
    ) -> float:
        if per_minute is None:
            return 0.0
        now = self._clock()
        bucket = self._bucket(caller, kind, per_minute, now)
        wait_s = bucket.wait_s(amount, now)
        if wait_s > patience_s:
            error = RateLimited(f"the limit of {per_minute} {kind} a minute is reached: try again later")
            error.retry_after_s = max(1, math.ceil(wait_s))
            raise error
        bucket.add(-amount, now)
        return wait_s

    def _bucket(self, caller: Caller, kind: str, per_minute: int, now: float) -> Bucket:
        bucket = self._buckets.get((caller.name, kind))
        if bucket is None:
            bucket = self._buckets[caller.name, kind] = Bucket(per_minute, now)
        elif bucket.per_minute != per_minute:
            bucket.set_rate(per_minute, now)
        return bucket


def headers(limits: list[Limit]) -> list[tuple[bytes, bytes]]:
    """The limits as headers with OpenAI's names."""
    return [
        (f"x-ratelimit-{what}-{limit.kind}".encode(), text.encode())
        for limit in limits
        for what, text in (
            ("limit", str(limit.per_minute)),
            ("remaining", str(limit.remaining)),
            ("reset", f"{limit.reset_s:.3f}s"),
        )
    ]
