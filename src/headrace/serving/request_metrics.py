"""What the engine's statistics of a request's completions mean to the caller."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.prefix_cache import MissReason
from headrace.core.types import CacheMiss, RequestStats
from headrace.serving.outputs import RequestMetrics


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
        cache_miss=_told(leader.miss),
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


def _told(miss: CacheMiss | None) -> str | None:
    """The reason as the caller may know it: that a foreign salt holds the same tokens is nobody else's business."""
    if miss is None or miss.reason == MissReason.NONE.value:
        return None
    if miss.reason == MissReason.OTHER_SALT.value:
        return MissReason.COLD.value
    if not miss.detail or miss.detail.startswith(miss.reason):
        return miss.detail or miss.reason
    return f"{miss.reason}: {miss.detail}"
