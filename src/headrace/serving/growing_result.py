"""A request's result, put together from the additions to its completions."""

from __future__ import annotations

import io

from headrace.core.types import TokenLogprobs
from headrace.serving.completion import Delta
from headrace.serving.outputs import (
    CompletionOutput,
    Logprob,
    LogprobsByToken,
    RequestOutput,
)
from headrace.serving.pending_request import PendingRequest
from headrace.text.tokenizer import Tokenizer


class GrowingResult:
    """Keeps everything that was added. `prompt` is the request's text, if it has one."""

    def __init__(self, pending: PendingRequest, prompt: str | None, tokenizer: Tokenizer | None) -> None:
        self.pending = pending
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._completions = [_Grown() for _ in pending.completions]
        self._prompt_logprobs: list[TokenLogprobs] = []

    def add(self, delta: Delta) -> None:
        if delta.index == 0:  # every completion computes the same prompt, or shares it
            self._prompt_logprobs.extend(delta.prompt_logprobs)
        grown = self._completions[delta.index]
        grown.text.write(delta.text)
        grown.token_ids.extend(delta.token_ids)
        grown.logprobs.extend(delta.logprobs)

    def result(self, finished: bool) -> RequestOutput:
        """What there is so far; `finished`: it is all."""
        new, metrics = self.pending.new, self.pending.metrics()
        return RequestOutput(
            request_id=new.request_id,
            prompt=self._prompt,
            prompt_token_ids=new.prompt,
            outputs=[self._output(index) for index in range(len(self._completions))],
            finished=finished,
            prompt_logprobs=self._prompt_logprobs_by_token(),
            metrics=metrics,
            num_cached_tokens=metrics.num_cached_tokens,
        )

    def _output(self, index: int) -> CompletionOutput:
        grown, completion = self._completions[index], self.pending.completions[index]
        shown = self.pending.new.params.logprobs is not None
        return CompletionOutput(
            index=index,
            text=grown.text.getvalue(),
            token_ids=tuple(grown.token_ids),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            logprobs=[by_token(entry, self._tokenizer) for entry in grown.logprobs] if shown else None,
            cumulative_logprob=sum(entry.logprob for entry in grown.logprobs) if shown else None,
            error=completion.error,
        )

    def _prompt_logprobs_by_token(self) -> list[LogprobsByToken | None] | None:
        if self.pending.new.params.prompt_logprobs is None:
            return None
        # The engine reports from the second prompt token on: nothing comes before the first.
        return [None, *(by_token(entry, self._tokenizer) for entry in self._prompt_logprobs)]


class _Grown:
    """One completion's additions."""

    __slots__ = ("logprobs", "text", "token_ids")

    def __init__(self) -> None:
        self.text = io.StringIO()
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []


def by_token(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> LogprobsByToken:
    """vLLM's form of the log-probabilities at one position."""
    found = {entry.token: Logprob(entry.logprob, entry.rank, decoded(entry.token, tokenizer))}
    for token, logprob, rank in entry.top:
        found.setdefault(token, Logprob(logprob, rank, decoded(token, tokenizer)))
    return found


def decoded(token: int, tokenizer: Tokenizer | None) -> str | None:
    """The text of a token inside a text; replacement characters where it is only part of a character."""
    return None if tokenizer is None else tokenizer.token_bytes(token).decode("utf-8", "replace")
