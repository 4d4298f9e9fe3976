"""A request whose completions grow."""

from __future__ import annotations

from headrace.core.types import NewRequest, Output, TokenLogprobs
from headrace.errors import InvalidParams
from headrace.serving.completion import Completion, Delta, by_token
from headrace.serving.outputs import LogprobsByToken, RequestOutput
from headrace.serving.request_metrics import request_metrics
from headrace.text.tokenizer import Tokenizer


class PendingRequest:
    """Takes the core outputs of one request in order; gives the additions to its completions, and its result.

    `prompt` is its text, if it has one. `visible` are special tokens that its outputs show, whatever its parameters
    say. Raises InvalidParams for stop strings that cannot be looked for, for want of a tokenizer.
    """

    def __init__(
        self, new: NewRequest, prompt: str | None, tokenizer: Tokenizer | None, visible: frozenset[int]
    ) -> None:
        if new.params.stop and tokenizer is None:
            raise InvalidParams("stop strings need a tokenizer, and this model has none: use stop_token_ids")
        self._new = new
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._completions = [
            Completion(index, new.params, tokenizer, new.prompt, visible) for index in range(new.params.n)
        ]
        self._running = set(range(new.params.n))
        self._prompt_logprobs: list[TokenLogprobs] = []

    @property
    def ended(self) -> bool:
        """The engine has said the last word on every completion."""
        return not self._running

    def take(self, output: Output) -> Delta | None:
        """The addition to a completion; None where there is nothing for the caller. See `Completion.take`."""
        if output.index not in self._running:
            return None
        if (
            output.prompt_logprobs and output.index == 0
        ):  # every completion computes the same prompt, or shares it
            self._prompt_logprobs.extend(output.prompt_logprobs)
        if output.finish_reason is not None:
            self._running.discard(output.index)
        return self._completions[output.index].take(output)

    def result(self, finished: bool) -> RequestOutput:
        """What there is so far; `finished`: it is all."""
        completions = self._completions
        metrics = request_metrics(
            [one.stats for one in completions if one.stats is not None],
            len(self._new.prompt),
            sum(len(one.token_ids) for one in completions),
        )
        return RequestOutput(
            request_id=self._new.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._new.prompt,
            outputs=[one.result() for one in completions],
            finished=finished,
            prompt_logprobs=self._prompt_logprobs_by_token(),
            metrics=metrics,
            num_cached_tokens=metrics.num_cached_tokens,
        )

    def _prompt_logprobs_by_token(self) -> list[LogprobsByToken | None] | None:
        if self._new.params.prompt_logprobs is None:
            return None
        # The engine reports from the second prompt token on: nothing comes before the first.
        return [None, *(by_token(entry, self._tokenizer) for entry in self._prompt_logprobs)]
