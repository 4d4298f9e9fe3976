"""What a server counts over its life. Counts only ever rise."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headrace.core.types import FinishReason
from headrace.server.seeing.histogram import COUNTS, SECONDS, TOKENS, Histogram


def _seconds() -> Histogram:
    return Histogram(SECONDS)


def _tokens() -> Histogram:
    return Histogram(TOKENS)


def _counts() -> Histogram:
    return Histogram(COUNTS)


@dataclass(slots=True)
class Tallies:
    """Times in seconds. `http` by (route, method, status); `finished` by finish reason, of completions."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    http: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    finished: Counter[str] = field(
        default_factory=lambda: Counter({reason.value: 0 for reason in FinishReason})
    )

    # As callers see them: from the arrival of the HTTP request on.
    ttft: Histogram = field(default_factory=_seconds)
    itl: Histogram = field(default_factory=_seconds)
    e2e: Histogram = field(default_factory=_seconds)

    # Of each prompt, on the engine's clock.
    tpot: Histogram = field(default_factory=_seconds)
    queue: Histogram = field(default_factory=_seconds)
    prefill: Histogram = field(default_factory=_seconds)
    decode: Histogram = field(default_factory=_seconds)
    inference: Histogram = field(default_factory=_seconds)

    prompt_length: Histogram = field(default_factory=_tokens)
    computed_length: Histogram = field(default_factory=_tokens)
    output_length: Histogram = field(default_factory=_tokens)
    longest_output: Histogram = field(default_factory=_tokens)
    max_tokens: Histogram = field(default_factory=_tokens)
    n: Histogram = field(default_factory=_counts)
