"""What a server reports about itself: GET /health, /ready, /version, /metrics and /usage, and the tasks behind them."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import ProcessCollector
from typing_extensions import TypedDict

from headrace import __version__
from headrace.server.access.keys import administrator
from headrace.server.observability.exposition import Reading
from headrace.server.observability.lag import LoopLag
from headrace.server.observability.metrics import METRICS, Sources
from headrace.server.observability.observer import Sink, log_request, tally
from headrace.server.requests.service import Service, service_of
from headrace.server.requests.tallies import Tallies
from headrace.serving.engine.state import EngineState
from headrace.serving.logs import LogWriter

POLL_INTERVAL_S = 1.0
"""What an engine counts in this time before it dies unexpectedly is lost."""

router = APIRouter()


class StatusAnswer(TypedDict):
    """`reason` says why there is no engine, if there is none."""

    status: str
    reason: NotRequired[str | None]


class VersionAnswer(TypedDict):
    version: str


class KeyUsage(TypedDict):
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    refused: dict[str, int]


class QueueUsage(TypedDict):
    completions: int
    max_completions: int
    tokens: int
    max_tokens: int


class UsageReport(TypedDict):
    """Counts by the name of the key since the server started."""

    object: Literal["usage"]
    keys: dict[str, KeyUsage]
    unauthorized: int
    queue: QueueUsage | None


@router.get("/health")
async def health(service: Annotated[Service, Depends(service_of)]) -> Response:
    """200 while an engine runs, 503 with a reason while none does."""
    state, trouble = service.client.state, service.client.trouble
    if state.alive:
        return _status({"status": "ok"})
    return _status({"status": f"engine {state.value}", "reason": trouble}, 503)


@router.get("/ready")
async def ready(service: Annotated[Service, Depends(service_of)]) -> Response:
    """200 while new requests are accepted: not while an engine starts, and not while the server shuts down."""
    state, trouble = service.client.state, service.client.trouble
    if state is EngineState.READY:
        return _status({"status": "ready"})
    return _status({"status": state.value, "reason": trouble}, 503)


def _status(answer: StatusAnswer, code: int = 200) -> Response:
    return JSONResponse(answer, code)


@router.get("/version")
async def version() -> Response:
    answer: VersionAnswer = {"version": __version__}
    return JSONResponse(answer)


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
    keys: dict[str, KeyUsage] = {
        name: {
            "requests": used.requests,
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.completion_tokens,
            "cached_tokens": used.cached_tokens,
            "refused": dict(used.refused),
        }
        for name, used in counted.items()
    }
    queued: QueueUsage | None = None
    if queue is not None:
        queued = {
            "completions": queue.completions,
            "max_completions": queue.max_completions,
            "tokens": queue.tokens,
            "max_tokens": queue.max_tokens,
        }
    answer: UsageReport = {
        "object": "usage",
        "keys": keys,
        "unauthorized": counted.unauthorized,
        "queue": queued,
    }
    return JSONResponse(answer)


class Monitor:
    """The counts of one server. `sinks` are called with each request that ends, after the tallies."""

    def __init__(self, service: Service, sinks: Sequence[Sink] = ()) -> None:
        self.tallies = Tallies()
        self.engine = service.engine.totals
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
