"""Requests whose grammar is being compiled: off the engine's steps, users in turn, each grammar within limits."""

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
"""What the compiled grammars of requests in the engine may hold in all."""
POLL_S = 0.004
"""How often an idle engine asks for grammars that are ready."""


@dataclass(slots=True)
class _Waiting:
    """A request whose grammar is not compiled yet."""

    new: NewRequest
    arrival: float
    pool: GrammarPool
    job: Job

    def time_is_up(self, now: float) -> bool:
        return any(
            seconds is not None and self.arrival + seconds <= now
            for seconds in (self.new.queue_timeout_s, self.new.timeout_s)
        )


@dataclass(slots=True)
class _Held:
    """A compiled grammar stays known while a request that is in the engine follows it, preempted ones included."""

    compiled: Compiled
    completions: int


class GrammarGate:
    """What `submit` takes comes out of `take` when the engine may have it. Calls come from the engine's thread.

    Grammars that are tried out first and those that need not be are compiled in pools of their own.
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
        """`take` will give something sooner or later."""
        return bool(self._waiting)

    def submit(self, new: NewRequest, now: float) -> bool:
        """True when the engine may have the request at once: its grammar is compiled, and now held.

        Raises InvalidParams where the grammar is known to be of no use or the id is taken, Overloaded where too many
        wait.
        """
        grammar = new.params.grammar
        assert grammar is not None
        if new.request_id in self._waiting:
            raise InvalidParams(f"a request with the id {new.request_id!r:.80} is already running")
        compiled = self._store.known(grammar)
        if compiled is not None:
            self._hold(new, compiled)
            return True
        pool = self._harmless if grammar.kind in HARMLESS else self._others
        job = pool.join(grammar, new.request_id, new.user)
        self._waiting[new.request_id] = _Waiting(new, now, pool, job)
        return False

    def abort(self, request_id: str) -> bool:
        """Forget a request that still waits; False for any other."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return False
        waiting.pool.leave(waiting.job, request_id)
        return True

    def take(self, now: float) -> list[tuple[NewRequest, float, HeadraceError | None]]:
        """Requests that need not wait any more, when they came, and why they failed if they did.

        Those whose time is up are among them: the engine ends them before it schedules them.
        """
        found: list[tuple[NewRequest, float, HeadraceError | None]] = []
        for pool in (self._harmless, self._others):
            for job, outcome in pool.finished():
                for request_id in job.waiting:
                    waiting = self._waiting.pop(request_id)
                    found.append((waiting.new, waiting.arrival, self._refusal(waiting.new, outcome)))
        for waiting in [waiting for waiting in self._waiting.values() if waiting.time_is_up(now)]:
            self.abort(waiting.new.request_id)
            found.append((waiting.new, waiting.arrival, None))
        return found

    def close(self) -> None:
        """End all processes and threads."""
        self._harmless.close()
        self._others.close()

    def let_go(self, request_id: str) -> None:
        """The engine did not take a request after all."""
        self._held.pop(request_id, None)

    def note(self, outputs: Iterable[Output]) -> None:
        """Let go of the grammars of completions that have ended."""
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
        """Hold what was compiled; why the request cannot have it, if so."""
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
        self._held[new.request_id] = _Held(compiled, new.params.n)
