"""The sums of what a client's engines have counted, kept up to date by asking."""

from __future__ import annotations

import asyncio

from headrace.errors import HeadraceError
from headrace.serving.client.base import AsyncClient
from headrace.serving.totals import EngineTotals

ENGINE_PATIENCE_S = 1.0
"""Time for the engine's reply, which it sends between two steps; after it the last reply is used."""


class PolledTotals(EngineTotals):
    """Sums over all engines of a client.

    What an engine counted between the last `poll` and its unexpected end is lost.
    """

    def __init__(self, client: AsyncClient, patience_s: float = ENGINE_PATIENCE_S) -> None:
        super().__init__()
        self._client = client
        self._patience_s = patience_s

    async def poll(self) -> None:
        """Ask the engine; without a reply in time, the last one stays."""
        number = self._client.restarts
        try:
            stats = await asyncio.wait_for(self._client.stats(), self._patience_s)
        except TimeoutError:
            return
        except HeadraceError:
            self.now = None
            return
        if number == self._client.restarts:
            self.take(number, stats)
