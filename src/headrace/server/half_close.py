"""Callers that end their side of a connection while they wait for an answer (a half-close, as `nc -N` does).

A caller that has left sends the same FIN. Only a write tells the two apart: the system answers it with a reset where
nobody reads any more, and the write after that fails, which ends the connection and frees what its request holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DELAYS_S = (0.0, 0.02, 0.1, 0.5)
"""When to probe after the FIN, and then once more each second; a distant caller's reset takes a round trip."""


class HalfClosed:
    """Calls `probe` with the seconds since the FIN, until `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, probe: Callable[[float], None]) -> None:
        self._loop = loop
        self._since = loop.time()
        self._probe = probe
        self._delays = iter(DELAYS_S)
        self._timer: asyncio.TimerHandle | None = None
        self._next()

    def _next(self) -> None:
        self._timer = self._loop.call_later(next(self._delays, 1.0), self._due)

    def _due(self) -> None:
        self._next()
        self._probe(self._loop.time() - self._since)

    def stop(self) -> None:
        """Ends the probes."""
        if self._timer is not None:
            self._timer.cancel()
