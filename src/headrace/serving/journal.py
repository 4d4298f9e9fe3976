"""Which completions have ended since somebody last looked: many live shorter than the pause between two looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.core.snapshot import Snapshot
from headrace.core.types import Output

MAX_ENDED = 512
"""Endings that are kept between two looks; the oldest are forgotten."""

WATCHED_S = 5.0
"""Seconds after a look for which endings are noted down."""


@dataclass(frozen=True, slots=True)
class View:
    """The engine now, and the endings since the last view: who, why, and the statistics; no tokens."""

    snapshot: Snapshot
    ended: tuple[Output, ...] = ()


class Journal:
    """Costs nothing while nobody looks. Times in seconds on the engine's clock."""

    def __init__(self) -> None:
        self._ended: deque[Output] = deque(maxlen=MAX_ENDED)
        self._until = float("-inf")

    def note(self, outputs: Iterable[Output], now: float) -> None:
        """Take in a step's news."""
        if now > self._until:
            self._ended.clear()
            return
        for output in outputs:
            if output.finish_reason is not None:
                self._ended.append(
                    Output(
                        output.request_id,
                        output.index,
                        finish_reason=output.finish_reason,
                        stats=output.stats,
                    )
                )

    def take(self, now: float) -> tuple[Output, ...]:
        """What was noted since the last call; somebody looks, so endings are noted from here on."""
        self._until = now + WATCHED_S
        ended = tuple(self._ended)
        self._ended.clear()
        return ended
