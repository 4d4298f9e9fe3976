"""Requests whose grammar is being compiled, beside the engine's steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.types import NewRequest, Output
from headrace.errors import HeadraceError, InvalidParams, Overloaded
from headrace.serving.grammar.checker import HARMLESS, GrammarChecker
from headrace.serving.grammar.pool import GrammarPool, default_workers
from headrace.serving.grammar.queue import Job
from headrace.text.grammar_store import GrammarStore

if TYPE_CHECKING:
    from headrace.text.grammars import Compiled

MAX_HELD_BYTES = 512 * 2**20
"""Memory limit of the compiled grammars of all requests in the engine."""
POLL_S = 0.004
"""Interval at which an idle engine polls for compiled grammars."""


@dataclass(slots=True)
class _Waiting:
    """A request whose grammar is not compiled yet."""

    new: NewRequest
    arrival: float
    pool: GrammarPool
    job: Job

    def expired(self, now: float) -> bool:
        return any(
            seconds is not None and self.arrival + seconds <= now
            for seconds in (self.new.queue_timeout_s, self.new.timeout_s)
        )


@dataclass(slots=True)
class _Held:
    """Keeps a compiled grammar while a request in the engine follows it, a preempted one too."""

    compiled: Compiled
    completions: int


class GrammarGate:
    """Holds requests from `submit` until `take` returns them. Calls come from the engine's thread.

    Grammars that are tried in a process first and those that need not be are compiled in separate pools.
    """

    def __init__(
        self,
        store: GrammarStore,
        new_checker: Callable[[], GrammarChecker] | None,
        workers: int | None = None,
    ) -> None:
        self._store = store
        self._harmless = GrammarPool(store, None)
        self._others = GrammarPool(store, new_checker, default_workers() if workers is None else workers)
        self._waiting: dict[str, _Waiting] = {}
        self._held: dict[str, _Held] = {}

    @property
    def busy(self) -> bool:
        """Requests wait; `take` will return them."""
        return bool(self._waiting)

    def submit(self, new: NewRequest, now: float) -> bool:
        """True if the grammar is compiled already, and now held: the request can be added to the engine at once.

        Raises InvalidParams if the grammar is known to be invalid or the id is in use, Overloaded if too many wait.
        """
        grammar = new.params.grammar
        assert grammar is not None
        if new.key in self._waiting:
            raise InvalidParams(f"a request with the id {new.request_id!r:.80} is already running")
        compiled = self._store.known(grammar)
        if compiled is not None:
            self._hold(new, compiled)
            return True
        pool = self._harmless if grammar.kind in HARMLESS else self._others
        job = pool.join(grammar, new.key, new.user)
        self._waiting[new.key] = _Waiting(new, now, pool, job)
        return False

    def abort(self, key: str) -> bool:
        """Drop a waiting request; False for any other."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return False
        waiting.pool.leave(waiting.job, key)
        return True

    def take(self, now: float) -> list[tuple[NewRequest, float, HeadraceError | None]]:
        """Requests whose wait has ended, with their arrival time and their error, if any.

        They include those whose deadline has passed: the engine ends these before it schedules them.
        """
        found: list[tuple[NewRequest, float, HeadraceError | None]] = []
        for pool in (self._harmless, self._others):
            for job, outcome in pool.finished():
                for key in job.waiting:
                    waiting = self._waiting.pop(key)
                    found.append((waiting.new, waiting.arrival, self._refusal(waiting.new, outcome)))
        for waiting in [waiting for waiting in self._waiting.values() if waiting.expired(now)]:
            self.abort(waiting.new.key)
            found.append((waiting.new, waiting.arrival, None))
        return found

    def close(self) -> None:
        """End all processes and threads."""
        self._harmless.close()
        self._others.close()

    def let_go(self, key: str) -> None:
        """The engine has refused a request."""
        self._held.pop(key, None)

    def note(self, outputs: Iterable[Output]) -> None:
        """Release the grammars of completions that have ended."""
        if not self._held:
            return
        for output in outputs:
            if output.finish_reason is None:
                continue
            held = self._held.get(output.request_id)
            if held is not None:
                held.completions -= 1
                if held.completions == 0:
                    del self._held[output.request_id]

    def _refusal(self, new: NewRequest, outcome: Compiled | HeadraceError) -> HeadraceError | None:
        """Hold the compiled grammar; the error if that failed."""
        if isinstance(outcome, HeadraceError):
            return outcome
        try:
            self._hold(new, outcome)
        except Overloaded as refusal:
            return refusal
        return None

    def _hold(self, new: NewRequest, compiled: Compiled) -> None:
        held = {id(one.compiled): one.compiled.size for one in self._held.values()} if compiled.size else {}
        if sum(held.values()) + compiled.size > MAX_HELD_BYTES and id(compiled) not in held:
            raise Overloaded("the grammars of running requests take too much memory; try again later")
        self._held[new.key] = _Held(compiled, new.params.n)
