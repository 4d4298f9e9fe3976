"""GET /health, /ready, /version and /metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from headrace import __version__
from headrace.server.access.usage import administrator
from headrace.server.observability.monitor import Sight
from headrace.server.service import Service, service_of
from headrace.serving.engine.state import EngineState

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
    """200 while new requests are taken: not while an engine starts, and not while the server ends."""
    state, trouble = service.client.state, service.client.trouble
    if state is EngineState.READY:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": state.value, "reason": trouble}, 503)


@router.get("/version")
async def version() -> Response:
    return JSONResponse({"version": __version__})


@router.get("/metrics", dependencies=[Depends(administrator)])
async def metrics(request: Request) -> Response:
    """All metrics; they tell of every caller, so a key needs admin rights for them."""
    sight: Sight = request.app.state.sight
    body, kind = await sight.scrape(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": kind, "Cache-Control": "no-store"})
