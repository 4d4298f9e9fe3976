"""The parts that answers are made of, whole or in chunks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from headrace.core.types import TokenLogprobs
from headrace.server.explanation import explanation
from headrace.server.job import Job
from headrace.serving.completion import Delta
from headrace.serving.source import arrivals


@dataclass(slots=True)
class Choice:
    """One completion as it grows."""

    index: int
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.logprobs.extend(delta.logprobs)
        self.prompt_logprobs.extend(delta.prompt_logprobs)
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


async def gathered(job: Job, count: int) -> list[Choice]:
    """Every choice of a job, whole. Ends the job's work if it is cancelled or fails."""
    choices = [Choice(index) for index in range(count)]
    try:
        async for items in arrivals(job):
            for index, delta in items:
                choices[index].add(delta)
    finally:
        job.cancel()
    return choices


def shows(delta: Delta) -> bool:
    """Something in it is for the caller; a token may be the middle of a character."""
    return bool(delta.text or delta.logprobs or delta.finish_reason)


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
    results = job.results
    prompt = sum(len(result.prompt_token_ids) for result in results)
    output = sum(result.metrics.num_output_tokens for result in results)
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(result.num_cached_tokens for result in results)},
    }
    if job.explain:
        counts["headrace"] = explanation(results)
    return counts
