"""A model's compiled grammars: each is compiled once while in use, and failures are cached for a time."""

from __future__ import annotations

import functools
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from headrace.core.forks import watch_forks
from headrace.core.grammar import Grammar
from headrace.errors import InvalidParams, MissingDependency
from headrace.extras import install_command
from headrace.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from headrace.text.grammars import Compiled, GrammarCompiler

MAX_REFUSED = 1024
"""Most failures that are cached; the oldest is removed first."""
REMEMBERED_S = 600.0
"""How long: a grammar that exceeded a limit of time or memory once may stay below it later."""


class Refusals:
    """By digest, as a source may be long. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reasons: OrderedDict[bytes, tuple[str, float]] = OrderedDict()  # reason and end; oldest first

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, grammar: Grammar, reason: str) -> None:
        digest = _digest(grammar)
        self._reasons[digest] = (reason, self._clock() + REMEMBERED_S)
        self._reasons.move_to_end(digest)
        if len(self._reasons) > MAX_REFUSED:
            self._reasons.popitem(last=False)

    def reason(self, grammar: Grammar) -> str | None:
        """Why the grammar was refused; None if it was not, or too long ago."""
        digest = _digest(grammar)
        reason, until = self._reasons.get(digest, (None, 0.0))
        if reason is not None and until <= self._clock():
            del self._reasons[digest]
            return None
        return reason


def _digest(grammar: Grammar) -> bytes:
    return hashlib.sha256(f"{grammar.kind} {grammar.source}".encode()).digest()


MAX_COMPILED = 32
"""Most compiled grammars that are kept while not in use."""
MAX_KEPT_BYTES = 256 * 2**20
"""Most memory of these."""


@functools.cache
def missing_package() -> str | None:
    """Why this installation supports no grammars; None if it does."""
    if find_spec("llguidance") is not None:
        return None
    return (
        "structured output and forced or strict tool calls need the package llguidance of the extra 'grammar', "
        "which is not installed"
    )


class GrammarStore:
    """Compiles on first use; safe to share between threads. Loads llguidance with the first grammar, not before.

    `tokenizer` is None for models without one, which support no grammars.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, vocab_size: int, eos_ids: frozenset[int], limit: int = MAX_COMPILED
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self.eos_ids = eos_ids
        self._limit = limit
        self._compiler: GrammarCompiler | None = None
        self._recent: OrderedDict[Grammar, Compiled] = OrderedDict()
        self._alive: WeakValueDictionary[Grammar, Compiled] = WeakValueDictionary()
        self._refused = Refusals()
        self.after_fork()
        watch_forks(self)

    def after_fork(self) -> None:
        """In a child process: another thread may have held the locks at the fork."""
        self._lock = threading.Lock()  # of the tables
        self._compiling = threading.Lock()

    def known(self, grammar: Grammar) -> Compiled | None:
        """The compiled grammar if there is one; None if only `get` can tell.

        Raises MissingDependency without llguidance, and InvalidParams as `get`.
        """
        missing = missing_package()
        if missing is not None:
            raise MissingDependency(missing, install_command("grammar"))
        with self._lock:
            found = self._alive.get(grammar)
            if found is None:
                reason = self._refused.reason(grammar)
                if reason is not None:
                    raise InvalidParams(reason)
                return None
            if found.worn:  # its users continue; the next one gets another
                del self._alive[grammar]
                self._recent.pop(grammar, None)
                return None
            self._keep(grammar, found)
            return found

    def get(self, grammar: Grammar, size: int = 0) -> Compiled:
        """The compiled grammar, cached while the caller holds it. `size`: bytes that it holds.

        Raises InvalidParams if the grammar is unusable, or the model supports none; MissingDependency without
        llguidance.
        """
        found = self.known(grammar)
        if found is not None:
            return found
        with self._compiling:
            found = self.known(grammar)  # another thread may have compiled it meanwhile
            if found is not None:
                return found
            try:
                found = self._loaded().compile(grammar)
            except InvalidParams as error:
                self.refuse(grammar, str(error))
                raise
        found.size = size
        with self._lock:
            self._keep(grammar, found)
        return found

    def refuse(self, grammar: Grammar, reason: str) -> None:
        """Cache for a while why a grammar is unusable."""
        with self._lock:
            self._refused.add(grammar, reason)

    def _keep(self, grammar: Grammar, compiled: Compiled) -> None:
        self._alive[grammar] = self._recent[grammar] = compiled
        self._recent.move_to_end(grammar)
        while len(self._recent) > self._limit or (
            len(self._recent) > 1 and sum(one.size for one in self._recent.values()) > MAX_KEPT_BYTES
        ):
            self._recent.popitem(last=False)

    def _loaded(self) -> GrammarCompiler:
        if self._compiler is None:
            if self._tokenizer is None:
                raise InvalidParams("a grammar needs a tokenizer, and this model has none")
            from headrace.text.grammars import GrammarCompiler

            self._compiler = GrammarCompiler(self._tokenizer, self._vocab_size, self.eos_ids)
        return self._compiler
