"""GET /usage: what each key has used, for administrators."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from headrace.errors import NotPermitted
from headrace.server.access.keys import Caller, caller_of
from headrace.server.service import Service, service_of

router = APIRouter()


def administrator(caller: Annotated[Caller, Depends(caller_of)]) -> Caller:
    """A FastAPI dependency of routes that show what concerns others. Raises NotPermitted."""
    if not caller.admin:
        raise NotPermitted("this is for keys with admin rights")
    return caller


@router.get("/usage", dependencies=[Depends(administrator)])
async def usage(service: Annotated[Service, Depends(service_of)]) -> Response:
    """Counts by the name of the key since the server started."""
    traffic = service.traffic
    keys: dict[str, Any] = {
        name: {
            "requests": used.requests,
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.completion_tokens,
            "cached_tokens": used.cached_tokens,
            "refused": dict(used.refused),
        }
        for name, used in traffic.usage.items()
    }
    queue = traffic.admission
    return JSONResponse(
        {
            "object": "usage",
            "keys": keys,
            "unauthorized": traffic.usage.unauthorized,
            "queue": None
            if queue is None
            else {
                "completions": queue.completions,
                "max_completions": queue.max_completions,
                "tokens": queue.tokens,
                "max_tokens": queue.max_tokens,
            },
        }
    )
