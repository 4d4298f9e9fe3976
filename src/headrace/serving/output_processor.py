"""Core outputs in; text, finished results and the completions to stop out. The same for every client."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.record import record
from headrace.core.types import NewRequest, Output
from headrace.errors import InvalidParams
from headrace.serving.completion import Delta
from headrace.serving.growing_result import GrowingResult
from headrace.serving.outputs import RequestOutput
from headrace.serving.pending_request import PendingRequest
from headrace.text.tokenizer import Tokenizer


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
