"""What a server sees of itself, and the tasks that keep looking."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Sequence

from headrace.server.observability.counts import LoopLag, Tallies
from headrace.server.observability.engine_totals import EngineTotals
from headrace.server.observability.exposition import Exposition
from headrace.server.observability.logs import LogWriter
from headrace.server.observability.metrics import Sources
from headrace.server.observability.observer import Sink, tally
from headrace.server.observability.request_log import log_request
from headrace.server.service import Service

LOOK_INTERVAL_S = 1.0
"""What an engine counts in this time before it dies unexpectedly is not seen."""


class Sight:
    """`sinks` are told of each request that ends, behind the tallies."""

    def __init__(self, service: Service, sinks: Sequence[Sink] = ()) -> None:
        self.tallies = Tallies()
        self.engine = EngineTotals(service.client)
        self.lag = LoopLag()
        self.sinks: tuple[Sink, ...] = (tally, log_request, *sinks)
        sources = Sources(
            service.client,
            service.facts,
            service.traffic,
            self.tallies,
            self.engine,
            self.lag,
            self._dropped_log_lines,
        )
        self._exposition = Exposition(sources, service.names[0])
        self._log: LogWriter | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    def start(self, log: LogWriter | None = None) -> None:
        """Begin to watch the event loop that runs now, and the engine, for as long as the loop runs."""
        self._log = log
        self._tasks = (
            asyncio.create_task(self.lag.watch(), name="loop-lag"),
            asyncio.create_task(self._look(), name="engine-totals"),
        )

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """(body, content type) of /metrics now."""
        await self.engine.look()
        return await to_thread(self._exposition.read().text, accept)

    def _dropped_log_lines(self) -> int:
        return 0 if self._log is None else self._log.dropped

    async def _look(self) -> None:
        while True:
            await self.engine.look()
            await asyncio.sleep(LOOK_INTERVAL_S)
