"""The engine process: messages in, steps, messages out. Single-threaded; the socket is its only tie to the world."""

from __future__ import annotations

import logging
from dataclasses import replace

from headrace.core.engine import Engine, EngineStats
from headrace.core.executor import Executor
from headrace.core.snapshot import snapshot
from headrace.core.types import NewRequest, StepPlan
from headrace.errors import EngineDead, HeadraceError, InvalidParams
from headrace.serving.engine.outbox import Outbox
from headrace.serving.engine.state import Journal, ModelFacts, View
from headrace.serving.engine.stepper import StepMeter, Stepper
from headrace.serving.engine.watchdog import TOKENS_PER_TIMEOUT, StepTimes, WorkCounter
from headrace.serving.grammar.gate import POLL_S, GrammarGate
from headrace.serving.system import MONOTONIC, Clock
from headrace.serving.wire.connection import Connection, ParentGone
from headrace.serving.wire.messages import (
    Abort,
    Accepted,
    Add,
    Dropped,
    Message,
    Ping,
    Pong,
    Ready,
    Shutdown,
    Snapshot,
    SnapshotRequest,
    Stats,
    StatsRequest,
    StepBegun,
    ToEngine,
    WireError,
    failed,
    refused,
    request_of,
)

EXIT_OK = 0
EXIT_FAILED = 1

_log = logging.getLogger(__name__)


class EngineLoop:
    """Serves one parent until it says Shutdown, closes the socket, or the engine fails.

    Messages are received between steps. While the engine has nothing to run, the loop sleeps on the socket.
    `stream_interval_s`: see Outbox. `meter`: compares steps with the machine's limits, for statistics.
    """

    def __init__(
        self,
        connection: Connection,
        engine: Engine,
        executor: Executor,
        clock: Clock = MONOTONIC,
        grammars: GrammarGate | None = None,
        stream_interval_s: float = 0.0,
        meter: StepMeter | None = None,
    ) -> None:
        self._connection = connection
        self._outbox = Outbox(connection, clock, stream_interval_s)
        self._engine = engine
        self._stepper = Stepper(engine, executor, clock, self._announce, meter)
        self._meter = meter
        self._clock = clock
        self._grammars = grammars
        self._journal = Journal()
        self._work = WorkCounter()
        self._step_times = StepTimes(clock)
        self._wait_until: float | None = None

    def run(self, facts: ModelFacts) -> int:
        """Report the model, then serve. Returns the exit code of the process."""
        try:
            self._connection.send(Ready(facts))
            while self._turn():
                pass
        except ParentGone:
            return EXIT_OK
        except (EngineDead, WireError) as error:
            _log.error("the engine process ends", exc_info=error)
            self._report(error)
            return EXIT_FAILED
        return EXIT_OK

    def _turn(self) -> bool:
        """Receive messages and run a step; False after Shutdown."""
        answers: list[Message] = []
        patience_s = self._patience()
        if patience_s != 0.0:
            self._outbox.flush()
        for message in self._connection.receive(patience_s):
            if isinstance(message, Shutdown):
                return False
            answer = self._handle(message)
            if answer is not None:
                answers.append(answer)
        answers += self._take_compiled()
        if answers:
            self._outbox.send(*answers)  # before the step: a refusal need not wait for it
        if self._engine.has_work:
            step = self._stepper.step()
            self._step_times.end()
            self._wait_until = step.wait_until
            self._outbox.add(step.outputs)
            self._journal.note(step.outputs, self._clock())
            if self._grammars is not None:
                self._grammars.note(step.outputs)
        return True

    def _patience(self) -> float | None:
        """Seconds to wait for a message before the next step; None for no limit."""
        patience = POLL_S if self._grammars is not None and self._grammars.busy else None
        if not self._engine.has_work:
            return patience
        if self._wait_until is None:
            return 0.0
        left = self._wait_until - self._clock()
        return left if patience is None else min(left, patience)

    def _handle(self, message: ToEngine) -> Message | None:
        match message:
            case Add():
                return self._add(message)
            case Abort():
                return self._abort(message)
            case Ping():
                return Pong()
            case StatsRequest():
                return Stats(message.number, self._metered(self._engine.stats()))
            case SnapshotRequest():
                now = self._clock()
                seen = snapshot(self._engine, now)
                seen = replace(seen, stats=self._metered(seen.stats))
                return Snapshot(message.number, View(seen, self._journal.take(now)))
            case _:
                raise WireError(f"a {type(message).__name__} message has no place here")

    def _metered(self, stats: EngineStats) -> EngineStats:
        if self._meter is None:
            return stats
        return replace(stats, roofline_fraction=self._meter.fraction(self._clock()))

    def _abort(self, message: Abort) -> Message | None:
        if self._grammars is not None and self._grammars.abort(message.key):
            return Dropped(message.key)
        if message.index is None:
            self._outbox.forget(message.key)
        self._engine.abort(message.key, self._clock(), message.index, stopped=message.stopped)
        return None

    def _add(self, message: Add) -> Message | None:
        try:
            new = request_of(message)
            if new.params.grammar is not None and not self._compiled(new):
                return None
            self._engine.add(new, self._clock())
        except HeadraceError as error:
            return refused(message.key, error)
        self._wait_until = None
        return Accepted(message.key)

    def _compiled(self, new: NewRequest) -> bool:
        """False if the request has to wait for its grammar to compile."""
        if self._grammars is None:
            raise InvalidParams("this engine does not support grammars")
        self._engine.check(new)
        return self._grammars.submit(new, self._clock())

    def _take_compiled(self) -> list[Message]:
        """Add requests whose grammar is ready, or whose deadline has passed, which the engine then reports."""
        answers: list[Message] = []
        if self._grammars is None:
            return answers
        for new, arrival, error in self._grammars.take(self._clock()):
            try:
                if error is not None:
                    raise error
                self._engine.add(new, arrival)  # its deadlines count from its arrival
            except HeadraceError as refusal:
                self._grammars.let_go(new.key)
                answers.append(refused(new.key, refusal))
                continue
            self._wait_until = None
            answers.append(Accepted(new.key))
        return answers

    def _announce(self, plan: StepPlan) -> None:
        """Send held updates before a step with prompts in it, and announce a large step."""
        work = self._work.count(plan)
        if work.tokens > TOKENS_PER_TIMEOUT:
            self._outbox.send(StepBegun(work.tokens, self._step_times.begin(work)))
        elif work.tokens > len(plan.slices):
            self._outbox.flush()

    def _report(self, error: Exception) -> None:
        if isinstance(
            error, EngineDead
        ):  # what went wrong inside is for the log, not for those who lose their streams
            error = EngineDead("the engine ended in a step that failed")
        try:
            self._outbox.send(failed(error))
        except (ParentGone, WireError):
            return  # the parent sees the socket close
