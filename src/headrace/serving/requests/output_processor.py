"""Core outputs in; text, finished results and the completions to stop out. The same for every client."""

from __future__ import annotations

import io
from collections.abc import Iterable

from headrace.core.record import record
from headrace.core.types import NewRequest, Output, TokenLogprobs
from headrace.errors import InvalidParams
from headrace.serving.requests.completion import Completion, Delta
from headrace.serving.requests.outputs import (
    CompletionOutput,
    Logprob,
    LogprobsByToken,
    RequestMetrics,
    RequestOutput,
    request_metrics,
)
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


@record
class Progress:
    """What a batch of core outputs means.

    deltas: additions to completions, in order. finished: requests all of whose completions have ended at the
    engine, so that their metrics are known. to_stop: (request id, completion) pairs that met a stop string: the
    caller must abort them at the engine with `stopped=True`.
    """

    deltas: tuple[Delta, ...] = ()
    finished: tuple[RequestOutput, ...] = ()
    to_stop: tuple[tuple[str, int], ...] = ()


class OutputProcessor:
    """Holds the text of every request between `add` and its end.

    Without a tokenizer (models of random weights) all text is empty and stop strings are refused. Outputs of
    requests that are not known, or not any more, are ignored.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._requests: dict[str, GrowingResult] = {}

    def __len__(self) -> int:
        """Requests that have not finished."""
        return len(self._requests)

    def add(self, new: NewRequest, prompt: str | None = None, visible: frozenset[int] | None = None) -> None:
        """Expect outputs of a request; `prompt` is its text, if it has one. `visible` are special tokens that its
        outputs show, whatever its parameters say.

        Raises InvalidParams for stop strings that cannot be looked for, and for an id that is in use.
        """
        if new.request_id in self._requests:
            raise InvalidParams(f"a request with the id {new.request_id!r:.80} is already running")
        pending = PendingRequest(new, self._tokenizer, visible)
        self._requests[new.request_id] = GrowingResult(pending, prompt, self._tokenizer)

    def discard(self, request_id: str) -> None:
        """Forget a request; what still comes for it is ignored. Unknown ids are, too."""
        self._requests.pop(request_id, None)

    def process(self, outputs: Iterable[Output]) -> Progress:
        """Take in news from the engine, in the order in which it came."""
        deltas: list[Delta] = []
        finished: list[RequestOutput] = []
        to_stop: list[tuple[str, int]] = []
        for output in outputs:
            request = self._requests.get(output.request_id)
            if request is None:
                continue
            delta = request.pending.take(output)
            if delta is not None:
                request.add(delta)
                deltas.append(delta)
                if delta.finish_reason is not None and output.finish_reason is None:
                    to_stop.append((output.request_id, output.index))
            if request.pending.ended:
                del self._requests[output.request_id]
                finished.append(request.result(finished=True))
        return Progress(tuple(deltas), tuple(finished), tuple(to_stop))

    def snapshot(self, request_id: str) -> RequestOutput:
        """The result of an unfinished request so far. Raises KeyError for one that is not known any more."""
        return self._requests[request_id].result(finished=False)
