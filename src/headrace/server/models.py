"""GET /v1/models: what is served."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from headrace.server.service import Service, service_of

router = APIRouter()


@router.get("/v1/models")
async def models(service: Annotated[Service, Depends(service_of)]) -> Response:
    return JSONResponse({"object": "list", "data": [_card(service, name) for name in service.names]})


@router.get("/v1/models/{name:path}")
async def model(name: str, service: Annotated[Service, Depends(service_of)]) -> Response:
    return JSONResponse(_card(service, service.model(name)))


def _card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "headrace",
        "root": service.facts.model,
        "max_model_len": service.facts.max_model_len,
    }
