"""The parts that answers are made of, whole or in chunks."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headrace.server.explanation import explanation
from headrace.server.job import Job
from headrace.server.json_parts import JsonList
from headrace.serving.completion import Delta
from headrace.serving.source import arrivals


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
