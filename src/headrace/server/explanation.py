"""The `headrace` block of a usage: what the engine did with each prompt, and why it took as long as it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.serving.outputs import RequestMetrics

_DIGITS = 6


def explanation(metrics: Sequence[RequestMetrics]) -> dict[str, Any]:
    """One entry a prompt. Times in seconds on the engine's clock, null where it did not come to that.

    `cache_miss` is null where every block that can be shared was; it never tells of what callers with another salt or
    key have sent.
    """
    return {"prompts": [_prompt(one) for one in metrics]}


def _prompt(metrics: RequestMetrics) -> dict[str, Any]:
    return {
        "prompt_tokens": metrics.num_prompt_tokens,
        "cached_tokens": metrics.num_cached_tokens,
        "cache_miss": metrics.cache_miss,
        "output_tokens": metrics.num_output_tokens,
        "preemptions": metrics.num_preemptions,
        "queue_s": _rounded(metrics.queue_s),
        "prefill_s": _rounded(metrics.prefill_s),
        "decode_s": _rounded(metrics.decode_s),
        "ttft_s": _rounded(metrics.ttft_s),
        "tpot_s": _rounded(metrics.tpot_s),
        "e2e_s": _rounded(metrics.e2e_s),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, _DIGITS)
