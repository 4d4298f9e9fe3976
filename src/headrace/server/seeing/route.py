"""GET /metrics, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from headrace.server.seeing.sight import Sight
from headrace.server.usage import administrator

router = APIRouter()


@router.get("/metrics", dependencies=[Depends(administrator)])
async def metrics(request: Request) -> Response:
    """All metrics; they tell of every caller, so a key needs admin rights for them."""
    sight: Sight = request.app.state.sight
    body, kind = await sight.scrape(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": kind, "Cache-Control": "no-store"})
