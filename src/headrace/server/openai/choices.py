"""The parts that answers are made of, whole or in chunks: choices, usage, and the `headrace` block that explains it."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headrace.server.http.json_parts import JsonList
from headrace.server.openai.job import Job
from headrace.serving.client.source import arrivals
from headrace.serving.requests.completion import Delta
from headrace.serving.requests.outputs import RequestMetrics

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


class Column(Protocol):
    """Something of each of a choice's tokens, written down as they come: log-probabilities, say."""

    def add(self, delta: Delta) -> None: ...

    def value(self) -> Any:
        """All of it, for `json_parts`."""
        ...


class Choice:
    """One completion as it grows. `logprobs` None: none are shown. `extras` are vLLM's further fields of a choice."""

    def __init__(
        self, index: int, logprobs: Column | None = None, extras: Mapping[str, Column] | None = None
    ) -> None:
        self.index = index
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._logprobs = logprobs
        self._extras = extras or {}
        self._text = io.StringIO()

    def add(self, delta: Delta) -> None:
        self._text.write(delta.text)
        if self._logprobs is not None:
            self._logprobs.add(delta)
        for column in self._extras.values():
            column.add(delta)
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason

    @property
    def text(self) -> str:
        return self._text.getvalue()

    @property
    def logprobs(self) -> Any:
        return None if self._logprobs is None else self._logprobs.value()

    @property
    def extras(self) -> dict[str, Any]:
        return {name: column.value() for name, column in self._extras.items()}


class TokenIds:
    """`token_ids` of a whole answer's choice."""

    def __init__(self) -> None:
        self._ids = JsonList()

    def add(self, delta: Delta) -> None:
        self._ids.extend(delta.token_ids)

    def value(self) -> JsonList:
        return self._ids


async def gather(job: Job, choices: Sequence[Choice]) -> None:
    """Read a job to its end. Ends the job's work if it is cancelled or fails."""
    try:
        async for items in arrivals(job):
            for index, delta in items:
                choices[index].add(delta)
    finally:
        job.cancel()


def shows(delta: Delta) -> bool:
    """Something in it is for the caller; a token may be the middle of a character."""
    return bool(delta.text or delta.logprobs or delta.prompt_logprobs or delta.finish_reason)


def head(kind: str, job: Job, model: str) -> dict[str, Any]:
    """The fields that all chunks of an answer share."""
    return {"id": job.name, "object": kind, "created": int(time.time()), "model": model}


class UsageSoFar:
    """Token counts of an answer that still grows."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt = prompt_tokens
        self._output = 0

    def add(self, delta: Delta) -> dict[str, Any]:
        """The counts with this addition."""
        self._output += len(delta.token_ids)
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._output,
            "total_tokens": self._prompt + self._output,
        }


def usage(job: Job) -> dict[str, Any]:
    """Token counts of a whole answer, with an explanation where one was asked for."""
    metrics = job.metrics
    prompt = sum(one.num_prompt_tokens for one in metrics)
    output = sum(one.num_output_tokens for one in metrics)
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(one.num_cached_tokens for one in metrics)},
    }
    if job.explain:
        counts["headrace"] = explanation(metrics)
    return counts
