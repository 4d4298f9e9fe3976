"""A request whose completions grow."""

from __future__ import annotations

from headrace.core.types import NewRequest, Output
from headrace.errors import InvalidParams
from headrace.serving.completion import Completion, Delta
from headrace.serving.outputs import RequestMetrics
from headrace.serving.request_metrics import request_metrics
from headrace.text.stop import StopAutomaton
from headrace.text.tokenizer import Tokenizer


class PendingRequest:
    """Takes the core outputs of one request in order; gives the additions to its completions, and keeps none.

    `visible` are special tokens that its outputs show, whatever its parameters say; None: see Completion. Raises
    InvalidParams for stop strings that cannot be looked for, for want of a tokenizer.
    """

    def __init__(self, new: NewRequest, tokenizer: Tokenizer | None, visible: frozenset[int] | None) -> None:
        if new.params.stop and tokenizer is None:
            raise InvalidParams("stop strings need a tokenizer, and this model has none: use stop_token_ids")
        self.new = new
        stops = StopAutomaton.of(new.params.stop) if new.params.stop else None
        self.completions = [
            Completion(index, new.params, tokenizer, new.prompt, visible, stops)
            for index in range(new.params.n)
        ]
        self._running = set(range(new.params.n))

    @property
    def ended(self) -> bool:
        """The engine has said the last word on every completion."""
        return not self._running

    def counted(self, index: int) -> tuple[int, bool]:
        """See ReadCounts."""
        one = self.completions[index]
        return one.num_tokens, one.finish_reason is not None

    def take(self, output: Output) -> Delta | None:
        """The addition to a completion; None where there is nothing for the caller. See `Completion.take`."""
        if output.index not in self._running:
            return None
        if output.finish_reason is not None:
            self._running.discard(output.index)
        return self.completions[output.index].take(output)

    def metrics(self) -> RequestMetrics:
        """Times and counts of what there is so far."""
        return request_metrics(
            [one.stats for one in self.completions if one.stats is not None],
            len(self.new.prompt),
            sum(one.num_tokens for one in self.completions),
        )
