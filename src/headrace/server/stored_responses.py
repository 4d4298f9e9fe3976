"""GET and DELETE /v1/responses/{id}: responses that were stored for the caller's key."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from headrace.errors import InvalidParams
from headrace.server.service import Service, service_of

router = APIRouter()


@router.get("/v1/responses/{response_id}")
async def stored_response(
    response_id: str, service: Annotated[Service, Depends(service_of)], stream: bool = False
) -> Response:
    """A response as it was answered, while it is stored."""
    if stream:
        raise InvalidParams("stream is not supported: what is stored is complete")
    stored = service.responses.get(service.caller.name, response_id)
    return Response(stored.response, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, service: Annotated[Service, Depends(service_of)]) -> Response:
    """Forget a response. Those that went on from it have its text in their own conversation."""
    service.responses.delete(service.caller.name, response_id)
    deleted: dict[str, Any] = {"id": response_id, "object": "response", "deleted": True}
    return JSONResponse(deleted)
