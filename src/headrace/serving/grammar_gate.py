"""Requests whose grammar is being compiled: off the engine's steps, one after the other, each within limits."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.grammar import Grammar
from headrace.core.types import NewRequest, Output
from headrace.errors import HeadraceError, InvalidParams, Overloaded
from headrace.serving.grammar_checker import GrammarChecker
from headrace.text.grammar_store import GrammarStore

if TYPE_CHECKING:
    from headrace.text.grammars import Compiled

MAX_WAITING = 64
"""Most requests that wait for a grammar to be compiled."""
MAX_HELD_BYTES = 512 * 2**20
"""What the compiled grammars of requests in the engine may hold in all."""
POLL_S = 0.004
"""How often an idle engine asks for grammars that are ready."""

_STACK_BYTES = 64 * 2**20  # far more than the checker's process has
_NICE = 10

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    """A compiled grammar stays known while a request that is in the engine follows it, preempted ones included."""

    compiled: Compiled
    completions: int


class GrammarGate:
    """What `submit` takes comes out of `take` when the engine may have it. Calls come from the engine's thread."""

    def __init__(self, store: GrammarStore, checker: GrammarChecker | None) -> None:
        self._store = store
        self._checker = checker
        self._waiting: dict[str, tuple[NewRequest, float]] = {}  # with the time when it came
        self._queue: queue.SimpleQueue[NewRequest] = queue.SimpleQueue()
        self._ready: deque[tuple[NewRequest, Compiled | HeadraceError]] = deque()
        self._held: dict[str, _Held] = {}
        self._thread: threading.Thread | None = None

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
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded("too many grammars wait to be compiled; try again later")
        self._waiting[new.request_id] = (new, now)
        self._queue.put(new)
        if self._thread is None:
            self._start()
        return False

    def abort(self, request_id: str) -> bool:
        """Forget a request that still waits; False for any other."""
        return self._waiting.pop(request_id, None) is not None

    def take(self) -> list[tuple[NewRequest, float, HeadraceError | None]]:
        """Requests that need not wait any more, when they came, and why they failed if they did."""
        found: list[tuple[NewRequest, float, HeadraceError | None]] = []
        while self._ready:
            new, outcome = self._ready.popleft()
            held = self._waiting.get(new.request_id)
            if held is None or held[0] is not new:
                continue  # aborted meanwhile
            del self._waiting[new.request_id]
            error = outcome if isinstance(outcome, HeadraceError) else None
            if not isinstance(outcome, HeadraceError):
                try:
                    self._hold(new, outcome)
                except Overloaded as refusal:
                    error = refusal
            found.append((new, held[1], error))
        return found

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

    def _hold(self, new: NewRequest, compiled: Compiled) -> None:
        held = {id(one.compiled): one.compiled.size for one in self._held.values()} if compiled.size else {}
        if sum(held.values()) + compiled.size > MAX_HELD_BYTES and id(compiled) not in held:
            raise Overloaded("the grammars of running requests take too much memory; try again later")
        self._held[new.request_id] = _Held(compiled, new.params.n)

    def _start(self) -> None:
        before = threading.stack_size(_STACK_BYTES)
        try:
            self._thread = threading.Thread(target=self._work, name="grammars", daemon=True)
            self._thread.start()
        finally:
            threading.stack_size(before)

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            new = self._queue.get()
            held = self._waiting.get(new.request_id)
            if held is None or held[0] is not new:
                continue
            assert new.params.grammar is not None
            # Nothing is kept in a variable of this endless loop.
            self._ready.append((new, self._outcome(new.params.grammar)))

    def _outcome(self, grammar: Grammar) -> Compiled | HeadraceError:
        try:
            return self._compile(grammar)
        except HeadraceError as refusal:
            return refusal
        except Exception as bug:  # nobody may wait for a thread that has ended
            _log.error("a grammar could not be compiled", exc_info=bug)
            return InvalidParams("the grammar cannot be compiled")

    def _compile(self, grammar: Grammar) -> Compiled:
        size = 0
        if self._checker is not None and self._store.known(grammar) is None:
            try:
                size = self._checker.check(grammar)
            except InvalidParams as error:
                self._store.refuse(grammar, str(error))
                raise
        return self._store.get(grammar, size)
