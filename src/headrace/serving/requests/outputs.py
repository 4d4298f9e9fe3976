"""Results: frozen values, with vLLM's names for the same things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.prefix_cache import MissReason
from headrace.core.types import CacheMiss, RequestStats


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of a token's probability; `rank` counts from 1, the most likely token."""

    logprob: float
    rank: int
    decoded_token: str | None  # None for models without a tokenizer


LogprobsByToken = dict[int, Logprob]
"""Log-probabilities at one position: first the token at that position, then the most likely ones."""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times in seconds on the engine's clock, None if the event did not happen; counts in tokens.

    queue_s: arrival to first scheduling. ttft_s: arrival to the first output token. tpot_s: mean time of an output
    token after the first. prefill_s: first scheduling to the first output token. decode_s: first output token to the
    last. e2e_s: arrival to the end. Several completions of one prompt share one arrival: queue_s
    and ttft_s are those of the earliest, e2e_s of the latest, and the counts are sums.
    num_cached_tokens: prompt tokens taken from the prefix cache; cache_miss: why there were not more.
    num_pinned_tokens: prompt tokens whose blocks stay pinned as the request asked.
    """

    queue_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    e2e_s: float | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    cache_miss: str | None = None
    num_pinned_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A prompt as a vector of float32 numbers."""

    embedding: Sequence[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """An embedding request and its result. prompt: None if the request came as token ids."""

    request_id: str
    outputs: EmbeddingOutput
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One completion, so far or in full.

    text: cut before the stop string, unless `include_stop_str_in_output` asked for it.
    token_ids: every sampled token, a stop token and the token that completed a stop string included.
    finish_reason: None while it runs, then "stop", "length", "abort", "timeout" or "error".
    stop_reason: the stop string or the id of `stop_token_ids` that ended it; None for end-of-sequence.
    logprobs: one entry a token, if requested. cumulative_logprob: their sum.
    error: the reason, with the finish reasons "error" and "timeout".
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[LogprobsByToken] | None = None
    cumulative_logprob: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request and its completions, in order of their index.

    prompt: None if the request came as token ids. prompt_logprobs: one entry a prompt token, the first of them
    None. metrics and num_cached_tokens are filled in when the request is finished.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[LogprobsByToken | None] | None
    metrics: RequestMetrics
    num_cached_tokens: int = 0


def request_metrics(
    stats: Sequence[RequestStats], num_prompt_tokens: int, num_output_tokens: int
) -> RequestMetrics:
    """`stats` of the completions that have ended, in order of their index; the first one's prompt was looked up."""
    if not stats:
        return RequestMetrics(num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_output_tokens)
    leader = stats[0]
    arrival = leader.arrival_s
    starts = [one.first_scheduled_s for one in stats if one.first_scheduled_s is not None]
    firsts = [one.first_token_s for one in stats if one.first_token_s is not None]
    lasts = [one.last_token_s for one in stats if one.last_token_s is not None]
    ends = [one.finished_s for one in stats if one.finished_s is not None]
    return RequestMetrics(
        queue_s=min(starts) - arrival if starts else None,
        ttft_s=min(firsts) - arrival if firsts else None,
        tpot_s=_tpot(stats),
        prefill_s=min(firsts) - min(starts) if firsts and starts else None,
        decode_s=max(lasts) - min(firsts) if firsts and lasts else None,
        e2e_s=max(ends) - arrival if ends else None,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        num_cached_tokens=leader.num_cached,
        num_preemptions=sum(one.num_preemptions for one in stats),
        num_drafted_tokens=sum(one.num_drafted for one in stats),
        num_accepted_tokens=sum(one.num_accepted for one in stats),
        cache_miss=_reason(leader.miss),
        num_pinned_tokens=max(one.num_pinned for one in stats),
    )


def _tpot(stats: Sequence[RequestStats]) -> float | None:
    """Mean seconds between output tokens over all completions that have two or more."""
    time, tokens = 0.0, 0
    for one in stats:
        if one.first_token_s is not None and one.last_token_s is not None and one.num_output > 1:
            time += one.last_token_s - one.first_token_s
            tokens += one.num_output - 1
    return time / tokens if tokens else None


def _reason(miss: CacheMiss | None) -> str | None:
    """The reason for the caller, who must not learn that another salt holds the same tokens."""
    if miss is None or miss.reason == MissReason.NONE.value:
        return None
    if miss.reason == MissReason.OTHER_SALT.value:
        return MissReason.COLD.value
    if not miss.detail or miss.detail.startswith(miss.reason):
        return miss.detail or miss.reason
    return f"{miss.reason}: {miss.detail}"
