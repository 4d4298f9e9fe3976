"""GET /plan: what `headrace plan` says, for the calculator of the page. It needs a key like every route of the API.

Plans are computed one at a time in a thread, and kept: most visitors ask for the same ones.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from headrace.errors import InvalidParams, ModelError, Overloaded
from headrace.server.requests.service import Service, service_of

SERVED = "served"
"""Names the model that is served here."""
SHAPE = "shape:"

MAX_NAME_CHARS, MAX_LIST_CHARS = 100, 200
MAX_MACHINES, MAX_FORMATS = 4, 6
MAX_TOKENS, MAX_USERS, MAX_REQUESTS, MAX_SECONDS = 10_000_000, 1_000_000, 1e10, 1e6
MAX_WAITING, MAX_KEPT = 8, 64

router = APIRouter(include_in_schema=False)

Tokens = Annotated[int | None, Query(ge=1, le=MAX_TOKENS)]
Seconds = Annotated[float | None, Query(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
Names = Annotated[str | None, Query(max_length=MAX_LIST_CHARS)]


@dataclass(frozen=True, slots=True)
class Asked:
    """The query of a plan."""

    model: str
    hardware: str
    formats: str | None
    prices: str | None
    prompt: int | None
    output: int | None
    prefix_hit: float
    users: int | None
    requests_per_day: float | None
    ttft_s: float | None
    tpot_s: float | None


class Plans:
    """Computes plans, one at a time, and keeps the last ones."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "plans")
        self._waiting = 0
        self._kept: OrderedDict[Asked, dict[str, Any]] = OrderedDict()

    async def plan(self, asked: Asked, served: str) -> dict[str, Any]:
        """`served` is the model that SERVED stands for. Raises HeadraceError where there is no plan, and Overloaded
        where too many wait for one."""
        if asked in self._kept:
            self._kept.move_to_end(asked)
            return self._kept[asked]
        if self._waiting >= MAX_WAITING:
            raise Overloaded(f"{self._waiting} plans are being computed already: try again later")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            made = await loop.run_in_executor(self._thread, _compute, asked, served)
        finally:
            self._waiting -= 1
        self._kept[asked] = made
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return made


@router.get("/plan")
async def plan(
    request: Request,
    service: Annotated[Service, Depends(service_of)],
    model: Annotated[str, Query(max_length=MAX_NAME_CHARS)] = SERVED,
    hardware: Annotated[str, Query(max_length=MAX_LIST_CHARS)] = "this",
    formats: Names = None,
    price_per_hour: Names = None,
    prompt_tokens: Tokens = None,
    output_tokens: Tokens = None,
    prefix_hit: Annotated[float, Query(ge=0, le=1)] = 0.0,
    users: Annotated[int | None, Query(ge=1, le=MAX_USERS)] = None,
    requests_per_day: Annotated[float | None, Query(ge=1, le=MAX_REQUESTS)] = None,
    ttft: Seconds = None,
    tpot: Seconds = None,
) -> dict[str, Any]:
    """The plan of a shape or of the served model, as `headrace plan --json` prints it. Counts as a request of the key.

    Folders and hub ids are refused: a caller must not learn what files there are, nor cause a download.
    """
    service.traffic.limiter.take_request(service.caller)
    if model != SERVED and not model.startswith(SHAPE):
        raise InvalidParams(
            f"model {model!r:.80}: the calculator plans for {SERVED!r} and for names as in {SHAPE}NAME"
        )
    asked = Asked(
        model, hardware, formats or None, price_per_hour or None, prompt_tokens, output_tokens, prefix_hit, users,
        requests_per_day, ttft, tpot,
    )  # fmt: skip
    plans: Plans = request.app.state.plans
    return await plans.plan(asked, service.facts.model)


@router.get("/plan/choices")
async def choices(service: Annotated[Service, Depends(service_of)]) -> dict[str, Any]:
    """What the calculator offers: models with their parameters, machines, and the served model's name."""
    from headrace.models.shapes import SHAPES
    from headrace.plan.hardware_table import HARDWARE

    return {
        "served": service.names[0],
        "models": [f"{SHAPE}{name}" for name in SHAPES],
        "hardware": [{"name": one.name, "title": one.title, "most": one.most} for one in HARDWARE],
    }


def _compute(asked: Asked, served: str) -> dict[str, Any]:
    # Loads numpy, which the server's process needs for nothing else.
    from headrace.plan.hardware_table import find_hardware
    from headrace.sim.planner.data import plan_data
    from headrace.sim.planner.model import open_model
    from headrace.sim.planner.overview import Question, make_overview
    from headrace.sim.planner.search import Promise
    from headrace.sim.planner.speed import Traffic
    from headrace.sim.profile_store import this_profile

    names = asked.hardware.split(",")
    kinds = None if asked.formats is None else tuple(one.strip() for one in asked.formats.split(","))
    if len(names) > MAX_MACHINES or len(kinds or ()) > MAX_FORMATS:
        raise InvalidParams(f"a plan compares up to {MAX_MACHINES} machines and {MAX_FORMATS} formats")
    machines = tuple(dict.fromkeys(find_hardware(name) for name in names))
    try:
        model = open_model(served if asked.model == SERVED else asked.model)
    except ModelError:
        if asked.model != SERVED:
            raise
        raise InvalidParams("the served model's files are gone: choose a shape") from None
    made = make_overview(
        Question(
            (model,),
            machines,
            Traffic.within(model.spec.max_position, asked.prompt, asked.output, asked.prefix_hit),
            Promise(asked.users, asked.ttft_s, asked.tpot_s, asked.requests_per_day),
            kinds,
            None,
            asked.prices,
            this_profile(),
        )
    )
    return plan_data(made)
