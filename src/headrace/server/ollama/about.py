"""GET /api/tags, /api/ps and /api/version, POST /api/show: what is served, as Ollama describes models."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from headrace.server.observability.monitor import VersionAnswer
from headrace.server.ollama.answers import timestamp
from headrace.server.ollama.route import named
from headrace.server.ollama.schemas import OllamaShowRequest
from headrace.server.requests.service import Service, service_of

router = APIRouter()

VERSION = "0.12.11"
"""The version of Ollama whose API this is; clients refuse to talk to old ones."""

_NEVER = "9999-12-31T23:59:59Z"
"""A served model stays in memory until the server ends."""

_OF_A_REGISTRY = ("/api/pull", "/api/push", "/api/create", "/api/copy")


class OllamaDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    """What /api/show answers."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaModelCard(TypedDict):
    """The last three in /api/ps."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: NotRequired[str]
    size_vram: NotRequired[int]
    context_length: NotRequired[int | None]


class OllamaModelList(TypedDict):
    models: list[OllamaModelCard]


@router.get("/api/version")
async def version() -> Response:
    answer: VersionAnswer = {"version": VERSION}
    return JSONResponse(answer)


@router.get("/api/tags")
async def tags(service: Annotated[Service, Depends(service_of)]) -> Response:
    answer: OllamaModelList = {"models": [_card(service, name) for name in service.names]}
    return JSONResponse(answer)


@router.get("/api/ps")
async def running(service: Annotated[Service, Depends(service_of)]) -> Response:
    answer: OllamaModelList = {"models": [_card(service, name) for name in service.names]}
    for card in answer["models"]:
        card["expires_at"], card["size_vram"] = _NEVER, 0
        card["context_length"] = service.facts.max_model_len
    return JSONResponse(answer)


@router.post("/api/show")
async def show(body: OllamaShowRequest, service: Annotated[Service, Depends(service_of)]) -> Response:
    named(service, body.model or body.name)
    facts = service.facts
    tokenizer = service.tokenizer
    template = None if tokenizer is None else tokenizer.chat_template_source()
    capabilities = ["completion", "embedding"]
    if template is not None:
        capabilities.append("tools")
    if service.replies.reasoning is not None:
        capabilities.append("thinking")
    info: dict[str, Any] = {
        "general.architecture": facts.family,
        "general.basename": service.names[0],
        "general.parameter_count": facts.num_parameters,
        f"{facts.family}.context_length": facts.max_model_len,
        f"{facts.family}.embedding_length": facts.hidden_size,
        f"{facts.family}.vocab_size": facts.vocab_size,
    }
    answer: OllamaModel = {
        "modelfile": f"FROM {service.names[0]}\n",
        "parameters": "\n".join(f"{name} {value}" for name, value in facts.sampling_defaults.items()),
        "template": template or "",
        "details": _details(service),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": timestamp(service.started),
    }
    return JSONResponse(answer)


async def _no_registry() -> Response:
    raise HTTPException(
        501, "this server serves the model that it was started with: see headrace serve --help"
    )


for _path in _OF_A_REGISTRY:
    router.add_api_route(_path, _no_registry, methods=["POST"], include_in_schema=False)
router.add_api_route("/api/delete", _no_registry, methods=["DELETE"], include_in_schema=False)


def _card(service: Service, name: str) -> OllamaModelCard:
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(service.started),
        "size": service.facts.weight_bytes,
        "digest": service.facts.weights_id,
        "details": _details(service),
    }


def _details(service: Service) -> OllamaDetails:
    facts = service.facts
    return {
        "parent_model": "",
        "format": facts.container,
        "family": facts.family,
        "families": [facts.family],
        "parameter_size": _size(facts.num_parameters),
        "quantization_level": facts.weight_format,
    }


def _size(parameters: int) -> str:
    """A number of parameters as Ollama writes it: 15.2M, 7.6B."""
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.1f}{letter}"
    return str(parameters)
