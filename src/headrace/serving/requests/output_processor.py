"""Core outputs in; text, finished results and the completions to stop out. The same for every client."""

from __future__ import annotations

import io
from collections.abc import Iterable

from headrace.core.params import RequestOutputKind
from headrace.core.record import record
from headrace.core.types import FinishReason, NewRequest, Output, TokenLogprobs
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
    """Turns the core outputs of one request, in order, into additions to its completions, and keeps none.

    `visible`: see Completion. Raises InvalidParams for stop strings without a tokenizer.
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
        """The engine has reported the end of every completion."""
        return not self._running

    def counted(self, index: int) -> tuple[int, bool]:
        """See ReadCounts."""
        one = self.completions[index]
        return one.num_tokens, one.finish_reason is not None

    def take(self, output: Output) -> Delta | None:
        """See `Completion.take`."""
        if output.index not in self._running:
            return None
        if output.finish_reason is not None:
            self._running.discard(output.index)
        return self.completions[output.index].take(output)

    def metrics(self) -> RequestMetrics:
        """Times and counts so far."""
        return request_metrics(
            [one.stats for one in self.completions if one.stats is not None],
            len(self.new.prompt),
            sum(one.num_tokens for one in self.completions),
        )


class GrowingResult:
    """Builds a request's results from the additions to its completions. `prompt` is the request's text, if it has one.

    With `output_kind` DELTA a result holds what was added since the previous one, in those completions alone that have
    grown; otherwise everything so far.
    """

    def __init__(self, pending: PendingRequest, prompt: str | None, tokenizer: Tokenizer | None) -> None:
        self.pending = pending
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._kind = pending.new.params.output_kind
        self._completions = [_Grown() for _ in pending.completions]
        # The engine reports from the second prompt token on: nothing comes before the first.
        self._prompt_logprobs: list[TokenLogprobs | None] = [None]

    def add(self, delta: Delta) -> None:
        if delta.index == 0:  # every completion computes the same prompt, or shares it
            self._prompt_logprobs.extend(delta.prompt_logprobs)
        self._completions[delta.index].add(delta)

    def partial(self) -> RequestOutput | None:
        """The result so far. None with FINAL_ONLY, and if every completion has ended: the final result follows."""
        complete = all(one.finish_reason is not None for one in self.pending.completions)
        return (
            None if complete or self._kind is RequestOutputKind.FINAL_ONLY else self._result(finished=False)
        )

    def final(self) -> RequestOutput:
        """The last result; a completion that has not ended was aborted."""
        return self._result(finished=True)

    def _result(self, finished: bool) -> RequestOutput:
        new, metrics, delta = self.pending.new, self.pending.metrics(), self._kind is RequestOutputKind.DELTA
        result = RequestOutput(
            request_id=new.request_id,
            prompt=self._prompt,
            prompt_token_ids=new.prompt,
            outputs=[
                self._output(grown, completion, finished)
                for grown, completion in zip(self._completions, self.pending.completions, strict=True)
                if not delta or grown.changed or (finished and completion.finish_reason is None)
            ],
            finished=finished,
            prompt_logprobs=None
            if new.params.prompt_logprobs is None
            else [
                None if entry is None else by_token(entry, self._tokenizer) for entry in self._prompt_logprobs
            ],
            metrics=metrics,
            num_cached_tokens=metrics.num_cached_tokens,
        )
        if delta:
            self._completions = [_Grown(grown.logprob) for grown in self._completions]
            self._prompt_logprobs = []
        return result

    def _output(self, grown: _Grown, completion: Completion, finished: bool) -> CompletionOutput:
        shown = self.pending.new.params.logprobs is not None
        return CompletionOutput(
            index=completion.index,
            text=grown.text.getvalue(),
            token_ids=tuple(grown.token_ids),
            finish_reason=completion.finish_reason or (FinishReason.ABORT.value if finished else None),
            stop_reason=completion.stop_reason,
            logprobs=[by_token(entry, self._tokenizer) for entry in grown.logprobs] if shown else None,
            cumulative_logprob=grown.logprob if shown else None,
            error=completion.error,
        )


class _Grown:
    """What was added to a completion. `logprob` is the sum over its tokens, of earlier results too."""

    __slots__ = ("changed", "logprob", "logprobs", "text", "token_ids")

    def __init__(self, logprob: float = 0.0) -> None:
        self.changed = False
        self.text = io.StringIO()
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.logprob = logprob

    def add(self, delta: Delta) -> None:
        self.changed = True
        self.text.write(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        for entry in delta.logprobs:
            self.logprob += entry.logprob


def by_token(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> LogprobsByToken:
    """vLLM's form of the log-probabilities at one position."""
    found = {entry.token: Logprob(entry.logprob, entry.rank, decoded(entry.token, tokenizer))}
    for token, logprob, rank in entry.top:
        found.setdefault(token, Logprob(logprob, rank, decoded(token, tokenizer)))
    return found


def decoded(token: int, tokenizer: Tokenizer | None) -> str | None:
    """The text of a token; replacement characters for a part of a character."""
    return None if tokenizer is None else tokenizer.token_bytes(token).decode("utf-8", "replace")


@record
class Progress:
    """The effect of some core outputs.

    deltas: additions to completions, in order. finished: requests whose completions have all ended at the engine, so
    that their metrics are known. to_stop: (request id, completion) pairs that reached a stop string: the caller must
    abort them at the engine with `stopped=True`.
    """

    deltas: tuple[Delta, ...] = ()
    finished: tuple[RequestOutput, ...] = ()
    to_stop: tuple[tuple[str, int], ...] = ()


class OutputProcessor:
    """Holds the text of every request between `add` and its end.

    Without a tokenizer (models of random weights) all text is empty and stop strings are refused. Ignores outputs of
    unknown requests.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._requests: dict[str, GrowingResult] = {}

    def __len__(self) -> int:
        """Requests that have not finished."""
        return len(self._requests)

    def add(self, new: NewRequest, prompt: str | None = None, visible: frozenset[int] | None = None) -> None:
        """Expect outputs of a request; `prompt` is its text, if it has one. `visible`: see Completion.

        Raises InvalidParams for stop strings without a tokenizer, and for an id that is in use.
        """
        if new.request_id in self._requests:
            raise InvalidParams(f"a request with the id {new.request_id!r:.80} is already running")
        pending = PendingRequest(new, self._tokenizer, visible)
        self._requests[new.request_id] = GrowingResult(pending, prompt, self._tokenizer)

    def discard(self, request_id: str) -> None:
        """Drop a request. Ignores unknown ids."""
        self._requests.pop(request_id, None)

    def process(self, outputs: Iterable[Output]) -> Progress:
        """Process outputs in order."""
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
                finished.append(request.final())
        return Progress(tuple(deltas), tuple(finished), tuple(to_stop))

    def partial(self, request_id: str) -> RequestOutput | None:
        """See GrowingResult. Raises KeyError for an unknown request."""
        return self._requests[request_id].partial()
