"""The client of an engine in the same process: the requests of all callers, of any thread, in one batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from headrace.core.engine import Engine, EngineStats
from headrace.core.executor import Executor
from headrace.core.forks import watch_forks
from headrace.core.types import NewRequest, Output
from headrace.errors import EngineDead
from headrace.serving.engine.stepper import Stepper
from headrace.serving.engine.turn import Interrupts, Turn
from headrace.serving.requests.output_processor import OutputProcessor
from headrace.serving.requests.outputs import RequestOutput
from headrace.serving.system import MONOTONIC, Clock, Sleep
from headrace.text.tokenizer import Tokenizer

_LONGEST_PAUSE_S = 0.25


class Call:
    """Requests that one caller waits for, each with its text if it came as text, and their results so far.

    A caller leaves by setting `closed`, in any state of the call, and does nothing else, so that a finalizer may do it
    at any line of a step. The next caller's turn, or `InProcessClient.settle`, aborts the requests that are left. With
    `growing`, `partial` holds the result of the only request after each step that added to it.
    """

    def __init__(self, requests: Sequence[tuple[NewRequest, str | None]], *, growing: bool = False) -> None:
        self.requests = tuple(requests)
        self.growing = growing
        self.left = {new.request_id for new, _ in requests}
        """Requests that have not ended."""
        self.results: dict[str, RequestOutput] = {}
        self.pooled: dict[str, Output] = {}
        """The last outputs of requests for an embedding."""
        self.partial: RequestOutput | None = None
        self.num_tokens = 0
        """Output tokens of all requests so far, and prompt tokens of those that became embeddings."""
        self.opened = False
        self.closed = False
        self.thread = None if growing else threading.get_ident()
        """The only thread that continues the call; None if any may."""
        self._shown = 0
        self._embedded = {new.request_id for new, _ in requests if new.pooling is not None}

    def take(self, finished: RequestOutput) -> None:
        """A request has ended."""
        self.results[finished.request_id] = finished
        self.left.discard(finished.request_id)

    def take_pooled(self, output: Output) -> bool:
        """True where the output ends a request for an embedding."""
        if output.request_id not in self._embedded or output.finish_reason is None:
            return False
        self.pooled[output.request_id] = output
        self.num_tokens += 0 if output.stats is None else output.stats.num_prompt
        self.left.discard(output.request_id)
        return True

    def grown(self) -> bool:
        """There are tokens that `partial` has not shown yet."""
        before, self._shown = self._shown, self.num_tokens
        return self._shown > before


class InProcessClient:
    """Runs one step at a time for all callers, on the thread of the caller whose turn it is; see Turn.

    `advance` a call while requests of it are left, then set its `closed`. Callers of several threads take turns, and
    each step computes the requests of all of them. Without a tokenizer all text is empty. If a step fails, every
    request is lost: that step, and all later calls, raise EngineDead with the cause. So does a child process that was
    forked while another thread ran a step.
    """

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        tokenizer: Tokenizer | None = None,
        clock: Clock = MONOTONIC,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._engine = engine
        self._stepper = Stepper(engine, executor, clock)
        self._processor = OutputProcessor(tokenizer)
        self._clock = clock
        self._sleep = sleep
        self.interrupts = Interrupts()
        """Held during each step, or for longer by a caller that runs many."""
        self._turn = Turn(self.interrupts)
        self._calls: list[Call] = []
        self._owners: dict[str, Call] = {}  # by the ids of requests that have not ended
        watch_forks(self)

    def advance(self, call: Call) -> None:
        """Run one step for all callers, unless the call has ended meanwhile; the first time, add its requests before.

        If nothing can run before a certain time (dynamic batching), sleeps for part of that. Raises RequestError if a
        request cannot be served, and EngineDead.
        """
        wait_until = None
        with self._turn:
            self._stepper.check()
            self._settle()
            call.partial = None
            if not call.opened:
                self._open(call)
            if call.left:
                wait_until = self._step()
            if call.growing and call.left and call.grown():
                (name,) = call.left
                call.partial = self._processor.partial(name)
        if wait_until is not None and (pause := wait_until - self._clock()) > 0:
            self._sleep(min(pause, _LONGEST_PAUSE_S))

    def settle(self) -> None:
        """Abort the requests of callers that have left."""
        with self._turn:
            self._settle()

    def stats(self) -> EngineStats:
        """Running and waiting requests, and counts since the start."""
        with self._turn:
            self._settle()
            return self._engine.stats()

    def after_fork(self) -> None:
        """In a child process: drop the calls of threads that do not exist here."""
        if self._turn.after_fork():
            self._stepper.error = EngineDead(
                "this process was forked while another thread ran a step of the model: load the model again here"
            )
            self._turn = Turn(self.interrupts)
        for call in self._calls:
            if call.thread not in (None, threading.get_ident()):
                call.closed = True

    def _open(self, call: Call) -> None:
        call.opened = True
        self._calls.append(call)
        for new, text in call.requests:  # all are checked before the first one is queued
            self._engine.check(new)
            if new.pooling is None:
                self._processor.add(new, text)
            self._owners[new.request_id] = call
        for new, _ in call.requests:
            self._engine.add(new, self._clock())

    def _settle(self) -> None:
        for call in [call for call in self._calls if call.closed]:
            self._calls.remove(call)
            for name in [name for name in call.left if self._owners.get(name) is call]:
                del self._owners[name]
                self._processor.discard(name)
                if self._stepper.error is None:
                    self._engine.abort(name, self._clock())

    def _step(self) -> float | None:
        """Run one step and distribute its outputs; returns the earliest time of the next one, or None for now."""
        step = self._stepper.step()
        progress = self._processor.process(step.outputs)
        for name, index in progress.to_stop:
            self._engine.abort(name, self._clock(), index, stopped=True)
        for delta in progress.deltas:
            self._owners[delta.request_id].num_tokens += len(delta.token_ids)
        for finished in progress.finished:
            self._owners.pop(finished.request_id).take(finished)
        for output in step.outputs:
            owner = self._owners.get(output.request_id)
            if owner is not None and owner.take_pooled(output):
                del self._owners[output.request_id]
        return None if step.outputs else step.wait_until
