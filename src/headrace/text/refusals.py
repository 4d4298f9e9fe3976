"""Grammars that were found to be of no use lately, so that each costs its time once."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

from headrace.core.grammar import Grammar

MAX_REFUSED = 1024
"""Most grammars that are remembered; the oldest is forgotten first."""
REMEMBERED_S = 600.0
"""How long: what took too much time or memory once may do with less on another day."""


class Refusals:
    """By digest, as a source may be long. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reasons: OrderedDict[bytes, tuple[str, float]] = (
            OrderedDict()
        )  # why, and until when; oldest first

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, grammar: Grammar, reason: str) -> None:
        digest = _digest(grammar)
        self._reasons[digest] = (reason, self._clock() + REMEMBERED_S)
        self._reasons.move_to_end(digest)
        if len(self._reasons) > MAX_REFUSED:
            self._reasons.popitem(last=False)

    def reason(self, grammar: Grammar) -> str | None:
        """Why the grammar was refused; None where it was not, or too long ago."""
        digest = _digest(grammar)
        reason, until = self._reasons.get(digest, (None, 0.0))
        if reason is not None and until <= self._clock():
            del self._reasons[digest]
            return None
        return reason


def _digest(grammar: Grammar) -> bytes:
    return hashlib.sha256(f"{grammar.kind} {grammar.source}".encode()).digest()
