"""What a request is charged at its arrival, before anybody knows how long its output will be."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.types import NewRequest

FIRST_ESTIMATE = 64
"""Output tokens that a completion is expected to have before any has ended."""

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
    """Expected output of a completion: an exponentially weighted moving average over those that ended of late.

    `longest`: the most tokens that prompt and output together can have, None for no limit.
    """

    def __init__(self, longest: int | None = None) -> None:
        self._longest = longest
        self._mean = float(FIRST_ESTIMATE)

    @property
    def tokens(self) -> int:
        return round(min(MAX_ESTIMATE, max(MIN_ESTIMATE, self._mean)))

    def learn(self, output_tokens: float) -> None:
        """A completion has ended with so many tokens."""
        self._mean += _WEIGHT * (output_tokens - self._mean)

    def cost(self, new: NewRequest) -> Cost:
        prompt, params = len(new.prompt), new.params
        output = self.tokens if params.max_tokens is None else min(self.tokens, params.max_tokens)
        if self._longest is not None:
            output = min(output, max(0, self._longest - prompt))
        return Cost(params.n, prompt, params.n * output)
