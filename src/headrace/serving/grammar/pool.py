"""Threads that compile grammars beside the engine, each with a process of its own that tries them first."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.core.grammar import Grammar
from headrace.errors import HeadraceError, InvalidParams, Overloaded
from headrace.serving.grammar.checker import GrammarChecker
from headrace.serving.grammar.queue import FairQueue, Job
from headrace.text.grammar_store import GrammarStore

if TYPE_CHECKING:
    from headrace.text.grammars import Compiled

IDLE_S = 60.0
"""A worker ends if they were not all busy for this long. The last one stays, as starting takes seconds."""
MIN_WORKERS, MAX_WORKERS = 2, 4
CLOSE_S = 2.0
"""Longest wait of `close` for threads that may still be compiling."""

_STACK_BYTES = 64 * 2**20  # far more than the checker's process has
_NICE = 10

_log = logging.getLogger(__name__)


def default_workers() -> int:
    """At least two, so that one user's grammars do not delay another's. Each takes 30 to 200 MB, depending on the
    vocabulary, and a core's idle time while it compiles."""
    return min(MAX_WORKERS, max(MIN_WORKERS, len(os.sched_getaffinity(0)) // 4))


@dataclass(slots=True, eq=False)
class _Worker:
    checker: GrammarChecker | None
    thread: threading.Thread = field(init=False)


class GrammarPool:
    """Compiles grammars from `join`, and returns them from `finished`. Starts threads and processes as needed.

    With `new_checker` None nothing is checked: for grammars whose cost is bounded by their size.
    """

    def __init__(
        self,
        store: GrammarStore,
        new_checker: Callable[[], GrammarChecker] | None,
        workers: int = 1,
        idle_s: float = IDLE_S,
    ) -> None:
        self._store = store
        self._new_checker = new_checker
        self._limit = workers
        self._idle_s = idle_s
        self._queue = FairQueue(workers)
        self._workers: list[_Worker] = []
        self._changed = threading.Condition()  # guards the queue, the list of workers, and the fields below
        self._all_busy = 0.0  # when all workers were last busy
        self._closed = False
        self._finished: deque[tuple[Job, Compiled | HeadraceError]] = deque()

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        with self._changed:
            checkers = [worker.checker for worker in self._workers]
        return [checker.pid for checker in checkers if checker is not None and checker.pid is not None]

    @property
    def threads(self) -> int:
        with self._changed:
            return len(self._workers)

    def join(self, grammar: Grammar, request_id: str, user: str) -> Job:
        """Enqueue a grammar. Raises Overloaded if too many wait."""
        with self._changed:
            job = self._queue.join(grammar, request_id, user)
            self._grow()
            if not self._workers:  # the system has no thread to give
                self._queue.leave(job, request_id)
                raise Overloaded("the grammar cannot be compiled now; try again later")
            self._changed.notify_all()
        return job

    def leave(self, job: Job, request_id: str) -> None:
        """A request does not wait for its grammar any more."""
        with self._changed:
            self._queue.leave(job, request_id)

    def finished(self) -> list[tuple[Job, Compiled | HeadraceError]]:
        """Jobs that have ended since the last call, each with its outcome."""
        found = []
        while self._finished:
            found.append(self._finished.popleft())
        return found

    def close(self) -> None:
        """End the processes and the threads; waiting jobs get no outcome."""
        with self._changed:
            self._closed = True
            workers = list(self._workers)
            self._changed.notify_all()
        deadline = time.monotonic() + CLOSE_S
        while any(worker.thread.is_alive() for worker in workers) and time.monotonic() < deadline:
            for worker in workers:
                if worker.checker is not None:
                    worker.checker.kill()  # repeatedly: one may just have been starting its process
                worker.thread.join(0.02)

    def _grow(self) -> None:
        """Start a worker if a job could be taken and all workers are busy."""
        if self._queue.working < len(self._workers):  # one is idle, or starting
            return
        if self._closed or self._queue.next_user() is None:
            return
        worker = _Worker(None if self._new_checker is None else self._new_checker())
        worker.thread = threading.Thread(target=self._work, args=(worker,), name="grammars", daemon=True)
        before = threading.stack_size(_STACK_BYTES)
        try:
            worker.thread.start()
        except RuntimeError as error:
            _log.warning("no thread for grammars: %s", error)
            return
        finally:
            threading.stack_size(before)
        self._workers.append(worker)
        self._all_busy = time.monotonic()

    def _work(self, worker: _Worker) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            while self._turn(worker):
                pass  # no variable of this loop keeps a compiled grammar alive
        finally:
            if worker.checker is not None:
                worker.checker.close()

    def _turn(self, worker: _Worker) -> bool:
        """Wait for a job and do it; False when the worker has ended."""
        refusal = self._start(worker)  # before a job is taken, which another worker may do meanwhile
        if refusal is not None:
            self._give_up(worker, refusal)
            return False
        job = self._next(worker)
        if job is None:
            return False
        self._end(job, self._outcome(worker, job.grammar))
        return True

    def _start(self, worker: _Worker) -> HeadraceError | None:
        """Start the worker's checker; the error if that failed."""
        if worker.checker is None or self._closed:
            return None
        try:
            worker.checker.start()
        except HeadraceError as refusal:
            return refusal
        except Exception as bug:
            return _unexpected(bug)
        return None

    def _give_up(self, worker: _Worker, refusal: HeadraceError) -> None:
        """A worker that cannot start leaves the jobs to the others. The last one refuses them."""
        with self._changed:
            self._workers.remove(worker)
            while not self._workers and (job := self._queue.take()) is not None:
                self._end(job, refusal)

    def _next(self, worker: _Worker) -> Job | None:
        """The next job; None if the worker must end, which is then no longer in the list."""
        with self._changed:
            while not self._closed:
                job = self._queue.take()
                if job is not None:
                    if self._queue.working == len(self._workers):
                        self._all_busy = time.monotonic()
                    self._grow()
                    return job
                if not self._wait():
                    break
            self._workers.remove(worker)
            return None

    def _end(self, job: Job, outcome: Compiled | HeadraceError) -> None:
        if isinstance(outcome, InvalidParams):
            self._store.refuse(job.grammar, str(outcome))
        with self._changed:
            self._queue.done(job)
            if job.waiting:  # else no request needs it
                self._finished.append((job, outcome))
            self._changed.notify_all()

    def _wait(self) -> bool:
        """Wait for a change; False if there are more workers than were needed lately."""
        if len(self._workers) == 1:
            return self._changed.wait()
        left = self._all_busy + self._idle_s - time.monotonic()
        if left > 0:
            self._changed.wait(left)
            return True
        self._all_busy = time.monotonic()  # one at a time
        return False

    def _outcome(self, worker: _Worker, grammar: Grammar) -> Compiled | HeadraceError:
        try:
            return self._compile(worker, grammar)
        except HeadraceError as refusal:
            return refusal
        except Exception as bug:  # the thread must not end, as requests wait for it
            return _unexpected(bug)

    def _compile(self, worker: _Worker, grammar: Grammar) -> Compiled:
        size = 0
        if worker.checker is not None and self._store.known(grammar) is None:
            size = worker.checker.check(grammar)
        return self._store.get(grammar, size)


def _unexpected(bug: Exception) -> InvalidParams:
    _log.error("a grammar could not be compiled", exc_info=bug)
    return InvalidParams("the grammar cannot be compiled")
