"""How much may run or wait at once, in completions and in tokens; and when it is worth trying again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.types import NewRequest
from headrace.errors import InvalidParams, Overloaded
from headrace.serving.clock import MONOTONIC, Clock
from headrace.serving.facts import ModelFacts

CACHE_FILLS = 16
"""The default queue holds as many tokens as the KV cache, so many times: what runs, and fifteen rounds that wait."""

MIN_RETRY_S, MAX_RETRY_S = 1, 60

_WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request takes of the queue: prompt tokens plus the most that its completions may add."""

    completions: int
    tokens: int

    def plus(self, other: Cost) -> Cost:
        return Cost(self.completions + other.completions, self.tokens + other.tokens)


class Admission:
    """Takes in whole groups of requests or nothing of them. `limit` is the longest sequence in tokens."""

    def __init__(self, max_completions: int, max_tokens: int, limit: int, clock: Clock = MONOTONIC) -> None:
        self.max_completions = max_completions
        self.max_tokens = max_tokens
        self.completions = 0
        """Completions that run or wait."""
        self.tokens = 0
        """Tokens that they may come to."""
        self._limit = limit
        self._clock = clock
        self._busy_since = 0.0
        self._drained: deque[tuple[float, Cost]] = deque()  # what has ended lately, since the queue was empty
        self._done = Cost(0, 0)  # the sum of that

    def cost(self, new: NewRequest) -> Cost:
        prompt, n = len(new.prompt), new.params.n
        room = max(0, self._limit - prompt)
        output = room if new.params.max_tokens is None else min(room, new.params.max_tokens)
        return Cost(n, prompt + n * output)

    def take(self, costs: Sequence[Cost]) -> None:
        """Make room for all of a caller's requests.

        Raises InvalidParams where they could not even be alone in the queue, Overloaded where they cannot be now.
        """
        completions, tokens = sum(cost.completions for cost in costs), sum(cost.tokens for cost in costs)
        if completions > self.max_completions:
            raise InvalidParams(
                f"the request asks for {completions} completions, but no more than {self.max_completions} may run "
                "or wait"
            )
        if tokens > self.max_tokens:
            raise InvalidParams(
                f"the request may come to {tokens} tokens, but no more than {self.max_tokens} may run or wait; "
                "lower max_tokens or n, or send fewer prompts at once"
            )
        short = Cost(
            self.completions + completions - self.max_completions, self.tokens + tokens - self.max_tokens
        )
        if short.completions > 0 or short.tokens > 0:
            error = Overloaded(
                f"{self.completions} completions of up to {self.tokens} tokens are running or waiting: try again later"
            )
            error.retry_after_s = self.retry_after(short)
            raise error
        if not self.completions:
            self._busy_since = self._clock()
            self._drained.clear()
            self._done = Cost(0, 0)
        self.completions += completions
        self.tokens += tokens

    def give_back(self, cost: Cost) -> None:
        """A request has ended, in whatever way."""
        self.completions -= cost.completions
        self.tokens -= cost.tokens
        self._drained.append((self._clock(), cost))
        self._done = self._done.plus(cost)
        self._forget()

    def retry_after(self, short: Cost) -> int:
        """Seconds until so much will have ended, at the rate of the last half minute; 1 … 60."""
        self._forget()
        now = self._clock()
        # A queue that has been busy for a second only tells of that second.
        span = min(_WINDOW_S, max(now - self._busy_since, 1e-3))
        wait_s = 0.0
        for lacking, done in (
            (short.completions, self._done.completions),
            (short.tokens, self._done.tokens),
        ):
            if lacking > 0:
                wait_s = max(wait_s, lacking * span / done if done else span)
        return min(MAX_RETRY_S, max(MIN_RETRY_S, math.ceil(wait_s)))

    def _forget(self) -> None:
        oldest = self._clock() - _WINDOW_S
        while self._drained and self._drained[0][0] < oldest:
            _, cost = self._drained.popleft()
            self._done = self._done.plus(Cost(-cost.completions, -cost.tokens))


def longest_sequence(facts: ModelFacts) -> int:
    """Tokens of the longest sequence; endless streams count as the whole KV cache."""
    return facts.max_model_len or _cache_tokens(facts)


def default_max_tokens(facts: ModelFacts) -> int:
    return max(CACHE_FILLS * _cache_tokens(facts), longest_sequence(facts))


def _cache_tokens(facts: ModelFacts) -> int:
    return facts.num_kv_blocks * facts.block_size
