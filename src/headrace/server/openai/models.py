"""GET /v1/models, and the served model's sampling defaults, which apply where a request sets nothing, as in vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from headrace.core.params import SamplingParams
from headrace.server.service import Service, service_of


def with_model_defaults(
    params: SamplingParams,
    body: object,
    defaults: Mapping[str, float],
    lengths: Sequence[int],
    context: int | None,
) -> SamplingParams:
    """`params` with `defaults` in place of what `body` leaves open.

    The default `max_tokens` bounds every answer. A prompt of `lengths` tokens that leaves less room in a `context`
    gets what is left.
    """
    changed: dict[str, float | int | None] = {
        name: value
        for name, value in defaults.items()
        if name != "max_tokens" and getattr(body, name, None) is None
    }
    limit = defaults.get("max_tokens")
    if limit is not None and (params.max_tokens is None or params.max_tokens > limit):
        room = limit if context is None else min(limit, context - max(lengths, default=0))
        changed["max_tokens"] = max(room, params.min_tokens) if room > 0 else params.max_tokens
    return replace(params, **changed) if changed else params  # type: ignore[arg-type]


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
