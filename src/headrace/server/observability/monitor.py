"""What a server reports about itself: GET /health, /ready, /version, /metrics and /usage, and the tasks behind them."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import ProcessCollector

from headrace import __version__
from headrace.server.access.keys import administrator
from headrace.server.observability.counts import EngineTotals, LoopLag, Tallies
from headrace.server.observability.exposition import Reading
from headrace.server.observability.logs import LogWriter
from headrace.server.observability.metrics import METRICS, Sources
from headrace.server.observability.observer import Sink, log_request, tally
from headrace.server.service import Service, service_of
from headrace.serving.engine.state import EngineState

POLL_INTERVAL_S = 1.0
"""What an engine counts in this time before it dies unexpectedly is lost."""

_USED = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")
_QUEUE = ("completions", "max_completions", "tokens", "max_tokens")

router = APIRouter()


@router.get("/health")
async def health(service: Annotated[Service, Depends(service_of)]) -> Response:
    """200 while an engine runs, 503 with a reason while none does."""
    state, trouble = service.client.state, service.client.trouble
    if state.alive:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": f"engine {state.value}", "reason": trouble}, 503)


@router.get("/ready")
async def ready(service: Annotated[Service, Depends(service_of)]) -> Response:
    """200 while new requests are accepted: not while an engine starts, and not while the server shuts down."""
    state, trouble = service.client.state, service.client.trouble
    if state is EngineState.READY:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": state.value, "reason": trouble}, 503)


@router.get("/version")
async def version() -> Response:
    return JSONResponse({"version": __version__})


@router.get("/metrics", dependencies=[Depends(administrator)])
async def metrics(request: Request) -> Response:
    """All metrics. They cover every caller, so a key needs admin rights for them."""
    monitor: Monitor = request.app.state.monitor
    body, kind = await monitor.scrape(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": kind, "Cache-Control": "no-store"})


@router.get("/usage", dependencies=[Depends(administrator)])
async def usage(service: Annotated[Service, Depends(service_of)]) -> Response:
    """Counts by the name of the key since the server started."""
    counted, queue = service.traffic.usage, service.traffic.admission
    keys = {
        name: {field: getattr(used, field) for field in _USED} | {"refused": dict(used.refused)}
        for name, used in counted.items()
    }
    queued = None if queue is None else {field: getattr(queue, field) for field in _QUEUE}
    return JSONResponse(
        {"object": "usage", "keys": keys, "unauthorized": counted.unauthorized, "queue": queued}
    )


class Monitor:
    """The counts of one server. `sinks` are called with each request that ends, after the tallies."""

    def __init__(self, service: Service, sinks: Sequence[Sink] = ()) -> None:
        self.tallies = Tallies()
        self.engine = EngineTotals(service.client)
        self.sinks: tuple[Sink, ...] = (tally, log_request, *sinks)
        self.sources = Sources(
            service.client,
            service.facts,
            service.traffic,
            self.tallies,
            self.engine,
            LoopLag(),
            self._dropped,
        )
        self._model_name = service.names[0]
        self._process = ProcessCollector(registry=None)  # memory, CPU time and open files of this process
        self._log: LogWriter | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    def start(self, log: LogWriter | None = None) -> None:
        """Watch the running event loop, and the engine, for as long as the loop runs."""
        self._log = log
        self._tasks = (
            asyncio.create_task(self.sources.lag.watch(), name="loop-lag"),
            asyncio.create_task(self._poll(), name="engine-totals"),
        )

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """(body, content type) of /metrics now."""
        await self.engine.poll()
        return await to_thread(self.read().text, accept)

    def read(self) -> Reading:
        """All values as they are now."""
        samples = [(metric, list(metric.read(self.sources))) for metric in METRICS]
        return Reading(samples, self._model_name, self._process)

    def _dropped(self) -> int:
        return 0 if self._log is None else self._log.dropped

    async def _poll(self) -> None:
        while True:
            await self.engine.poll()
            await asyncio.sleep(POLL_INTERVAL_S)
