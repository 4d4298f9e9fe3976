"""Requests and tokens a minute for each caller, as token buckets.

A request takes its tokens from the bucket at once, also where that leaves it below zero, and then waits until the
bucket would have held them (the reservations of Go's x/time/rate, the same as Guava's RateLimiter). So requests of
one caller get their tokens in the order in which they came, and a wait is known before it begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.errors import RateLimited
from headrace.server.access.keys import Caller
from headrace.serving.system import MONOTONIC, Clock

MAX_WAIT_S = 10.0
"""Longest that a request waits for its caller's tokens; one that would have to wait longer is refused."""

_MINUTE_S = 60.0


class Bucket:
    """Holds up to `per_minute` and fills up at that rate. May fall below zero: then nothing is given for a while."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._seen = now

    def set_rate(self, per_minute: int, now: float) -> None:
        """Change the limit; what was used of the old one stays used."""
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
        """Seconds until there is `amount`, or until the bucket is full where it never holds so much."""
        lacking = min(amount, float(self.per_minute)) - self.level(now)
        return max(0.0, lacking * _MINUTE_S / self.per_minute)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a caller may be told about one limit."""

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
        """Count one request. Raises RateLimited, with the time after which there is one more."""
        self._take(caller, "requests", caller.requests_per_minute, 1)

    def reserve_tokens(self, caller: Caller, tokens: int, patience_s: float = MAX_WAIT_S) -> float:
        """Take tokens for a request; gives the seconds after which it may run. Raises RateLimited where that is more
        than `patience_s`, and takes nothing.

        More than a whole minute's tokens need a full bucket, and are paid off afterwards.
        """
        return self._take(caller, "tokens", caller.tokens_per_minute, tokens, patience_s)

    def charge_tokens(self, caller: Caller, tokens: int) -> None:
        """Take tokens of a request that runs: the next ones wait for them to be paid off."""
        self.return_tokens(caller, -tokens)

    def return_tokens(self, caller: Caller, tokens: int) -> None:
        """Give back what was set aside and not used."""
        bucket = self._buckets.get((caller.name, "tokens"))
        if bucket is not None:
            bucket.add(tokens, self._clock())

    def limits(self, caller: Caller) -> list[Limit]:
        """How much of each of the caller's limits is left."""
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
        """Forget the buckets of callers who are not there any more."""
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
