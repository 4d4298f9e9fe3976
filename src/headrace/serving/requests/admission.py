"""The bounded queue: how many completions and tokens may run or wait at once, and when to try again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.types import NewRequest
from headrace.errors import InvalidParams, Overloaded
from headrace.serving.engine.state import ModelFacts
from headrace.serving.system import MONOTONIC, Clock

FIRST_ESTIMATE = 64
"""Expected output tokens of a completion before any has ended."""

MIN_ESTIMATE, MAX_ESTIMATE = 16, 256
"""Bounds of the estimate. Output beyond it is charged as it comes, so an estimate that is too small costs nothing,
while one that is too large refuses requests that could be served."""

_WEIGHT = 1 / 16


@dataclass(frozen=True, slots=True)
class Cost:
    """`prompt` and `output` in tokens; `output` is an estimate for all completions together."""

    completions: int
    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        return self.prompt + self.output


class OutputEstimate:
    """Expected output of a completion: an exponentially weighted moving average over the completions that ended.

    `longest`: the most tokens that prompt and output together can have, None for no limit.
    """

    def __init__(self, longest: int | None = None) -> None:
        self._longest = longest
        self._mean = float(FIRST_ESTIMATE)

    @property
    def tokens(self) -> int:
        return round(min(MAX_ESTIMATE, max(MIN_ESTIMATE, self._mean)))

    def learn(self, output_tokens: float) -> None:
        """A completion has ended with this many tokens."""
        self._mean += _WEIGHT * (output_tokens - self._mean)

    def cost(self, new: NewRequest) -> Cost:
        prompt, params = len(new.prompt), new.params
        output = self.tokens if params.max_tokens is None else min(self.tokens, params.max_tokens)
        if self._longest is not None:
            output = min(output, max(0, self._longest - prompt))
        return Cost(params.n, prompt, params.n * output)


CACHE_FILLS = 16
"""The default queue holds this many times the tokens of the KV cache: one running, fifteen waiting."""

MIN_QUEUE_TOKENS = 2**17
"""Lower bound of the default: a waiting prompt takes a few bytes a token, however small the KV cache is."""

MIN_RETRY_S, MAX_RETRY_S = 1, 60

_WINDOW_S = 30.0


class Admission:
    """Counts running and waiting work. A caller's requests are admitted together or not at all.

    A request is charged its prompt and an estimate of its output (`Cost`), and more as its output outgrows that
    (`charge`). So the charges may exceed `max_tokens` for a while; then no other request is admitted.
    """

    def __init__(self, max_completions: int, max_tokens: int, clock: Clock = MONOTONIC) -> None:
        self.max_completions = max_completions
        self.max_tokens = max_tokens
        self.completions = 0
        """Completions that run or wait."""
        self.tokens = 0
        """Tokens that they are charged."""
        self._clock = clock
        self._busy_since = 0.0
        self._drained: deque[tuple[float, int, int]] = deque()  # (time, completions, tokens) of recent ends
        self._done = (0, 0)  # their sums

    def take(self, costs: Sequence[Cost]) -> None:
        """Admit all of a caller's requests.

        Raises InvalidParams if their completions or their prompts alone exceed the queue, Overloaded if there is no
        room now. Output is an estimate, so it never makes a request too large for an empty queue.
        """
        completions = sum(cost.completions for cost in costs)
        prompts, tokens = sum(cost.prompt for cost in costs), sum(cost.tokens for cost in costs)
        if completions > self.max_completions:
            raise InvalidParams(
                f"the request asks for {completions} completions, but no more than {self.max_completions} may run "
                "or wait"
            )
        if prompts > self.max_tokens:
            raise InvalidParams(
                f"the prompts have {prompts} tokens, but no more than {self.max_tokens} may run or wait; send fewer "
                "or shorter prompts at once"
            )
        lacking = (
            self.completions + completions - self.max_completions,
            self.tokens + tokens - self.max_tokens,
        )
        if self.completions and max(lacking) > 0:
            error = Overloaded(
                f"{self.completions} completions with {self.tokens} tokens are running or waiting: try again later"
            )
            error.retry_after_s = self.retry_after(*lacking)
            raise error
        if not self.completions:
            self._busy_since = self._clock()
            self._drained.clear()
            self._done = (0, 0)
        self.completions += completions
        self.tokens += tokens

    def charge(self, tokens: int) -> None:
        """A request has generated more tokens than it was charged."""
        self.tokens += tokens

    def give_back(self, completions: int, tokens: int) -> None:
        """A request has ended; `tokens` is the total that it was charged."""
        self.completions -= completions
        self.tokens -= tokens
        self._drained.append((self._clock(), completions, tokens))
        self._done = (self._done[0] + completions, self._done[1] + tokens)
        self._forget()

    def retry_after(self, completions: int, tokens: int) -> int:
        """Seconds until this much has ended, at the rate of the last half minute; 1 to 60."""
        self._forget()
        now = self._clock()
        # The rate of a queue that has been busy for a second is that of this second.
        span = min(_WINDOW_S, max(now - self._busy_since, 1e-3))
        wait_s = 0.0
        for lacking, done in zip((completions, tokens), self._done, strict=True):
            if lacking > 0:
                wait_s = max(wait_s, lacking * span / done if done else span)
        return min(MAX_RETRY_S, max(MIN_RETRY_S, math.ceil(wait_s)))

    def _forget(self) -> None:
        oldest = self._clock() - _WINDOW_S
        while self._drained and self._drained[0][0] < oldest:
            _, completions, tokens = self._drained.popleft()
            self._done = (self._done[0] - completions, self._done[1] - tokens)


def longest_sequence(facts: ModelFacts) -> int:
    """Tokens of the longest sequence; endless streams count as the whole KV cache."""
    return facts.max_model_len or _cache_tokens(facts)


def default_max_tokens(facts: ModelFacts) -> int:
    return max(CACHE_FILLS * _cache_tokens(facts), longest_sequence(facts), MIN_QUEUE_TOKENS)


def _cache_tokens(facts: ModelFacts) -> int:
    return facts.num_kv_blocks * facts.block_size
