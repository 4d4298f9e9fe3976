"""The OpenAPI document: what FastAPI knows of the routes, with the answers, the errors, and this model's own limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from headrace.server.service import Service
from headrace.server.ui import answers

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
PROMETHEUS = "text/plain"
OPENMETRICS = "application/openmetrics-text"

_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
"""Before OpenAPI 3.2 a schema describes each event of a stream; `event` is there where a dialect names its events."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route answers with 200: JSON of a model, other media types, or one or the other. `unavailable` is what it
    says with 503 where that is no error body."""

    model: type[BaseModel] | None = None
    media: tuple[str, ...] = ()
    unavailable: type[BaseModel] | None = None
    error: type[BaseModel] = answers.ErrorAnswer


ANSWERS: dict[tuple[str, str], Answer] = {
    ("post", "/v1/completions"): Answer(answers.CompletionAnswer, (EVENTS,)),
    ("post", "/v1/chat/completions"): Answer(answers.ChatAnswer, (EVENTS,)),
    ("post", "/v1/responses"): Answer(answers.ResponsesAnswer, (EVENTS,)),
    ("get", "/v1/responses/{response_id}"): Answer(answers.ResponsesAnswer),
    ("delete", "/v1/responses/{response_id}"): Answer(answers.ResponseDeleted),
    ("post", "/v1/messages"): Answer(answers.MessageAnswer, (EVENTS,), error=answers.MessagesErrorAnswer),
    ("post", "/v1/messages/count_tokens"): Answer(
        answers.CountTokensAnswer, error=answers.MessagesErrorAnswer
    ),
    ("post", "/v1/embeddings"): Answer(answers.EmbeddingAnswer),
    ("post", "/api/chat"): Answer(answers.OllamaChatAnswer, (LINES,), error=answers.OllamaErrorAnswer),
    ("post", "/api/generate"): Answer(
        answers.OllamaGenerateAnswer, (LINES,), error=answers.OllamaErrorAnswer
    ),
    ("post", "/api/embed"): Answer(answers.OllamaEmbedAnswer, error=answers.OllamaErrorAnswer),
    ("post", "/api/embeddings"): Answer(answers.OllamaEmbeddingAnswer, error=answers.OllamaErrorAnswer),
    ("post", "/api/show"): Answer(answers.OllamaModel, error=answers.OllamaErrorAnswer),
    ("get", "/api/tags"): Answer(answers.OllamaModelList, error=answers.OllamaErrorAnswer),
    ("get", "/api/ps"): Answer(answers.OllamaModelList, error=answers.OllamaErrorAnswer),
    ("get", "/api/version"): Answer(answers.VersionAnswer, error=answers.OllamaErrorAnswer),
    ("post", "/tokenize"): Answer(answers.TokenizeAnswer),
    ("post", "/detokenize"): Answer(answers.DetokenizeAnswer),
    ("get", "/v1/models"): Answer(answers.ModelList),
    ("get", "/v1/models/{name}"): Answer(answers.ModelCard),
    ("get", "/health"): Answer(answers.StatusAnswer, unavailable=answers.StatusAnswer),
    ("get", "/ready"): Answer(answers.StatusAnswer, unavailable=answers.StatusAnswer),
    ("get", "/version"): Answer(answers.VersionAnswer),
    ("get", "/usage"): Answer(answers.UsageReport),
    ("get", "/live"): Answer(media=(EVENTS,)),
    ("get", "/metrics"): Answer(media=(PROMETHEUS, OPENMETRICS)),
}
"""By method and path, for every route of the app."""

_ERRORS = {
    "400": "The request is at fault; the message says where.",
    "401": "The API key is missing or wrong.",
    "403": "The key may not do this.",
    "404": "No such model, or no such response.",
    "413": "The body is too large.",
    "421": "The server does not answer to this Host.",
    "429": "The queue is full, or the key has used up its share; see Retry-After.",
    "500": "A fault of the server.",
    "503": "There is no engine at the moment; see Retry-After.",
    "504": "The request's own deadline, or the server's, has passed.",
}
_ONLY_WITH_BODY = frozenset({"400", "413", "429", "504"})

TOKEN_ID = "token-id"
"""The format of whole numbers that must be ids of the model's vocabulary."""


def install(app: FastAPI) -> None:
    """Serve the document at FastAPI's /openapi.json. Call it when all routes are known."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = build(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # as FastAPI's documentation has it


def build(app: FastAPI) -> dict[str, Any]:
    """The whole document."""
    document = get_openapi(
        title=app.title, version=app.version, routes=app.routes,
        description="The OpenAI API, with vLLM's extras; null means the default.",
    )  # fmt: skip
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own error shape is not ours
        schemas.pop(name, None)
    schemas.update(_answer_schemas())
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for method, path, operation in operations(document):
        described = ANSWERS.get((method, path))
        if described is None:
            continue
        operation["responses"] = _responses(described, operation)
        if path not in ("/health", "/ready"):
            operation["security"] = [{"key": []}, {}]  # keys are for servers that have some
    _limit(document, app.state.service)
    return document


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, operation) of all routes."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def _answer_schemas() -> dict[str, Any]:
    models: set[type[BaseModel]] = {answer.error for answer in ANSWERS.values()}
    for answer in ANSWERS.values():
        models |= {model for model in (answer.model, answer.unavailable) if model is not None}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "serialization") for model in ordered], ref_template="#/components/schemas/{model}"
    )
    found: dict[str, Any] = definitions["$defs"]
    return found


def _responses(described: Answer, operation: Mapping[str, Any]) -> dict[str, Any]:
    has_body = "requestBody" in operation
    has_fields = has_body or "parameters" in operation
    content: dict[str, Any] = {
        media: {"schema": _EVENT if media == EVENTS else {"type": "string"}} for media in described.media
    }
    if described.model is not None:
        content = {"application/json": _reference(described.model), **content}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    for status, what in _ERRORS.items():
        if has_body or status not in _ONLY_WITH_BODY or (status == "400" and has_fields):
            model = described.unavailable if status == "503" and described.unavailable else described.error
            responses[status] = {"description": what, "content": {"application/json": _reference(model)}}
    return responses


def _reference(model: type[BaseModel]) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}


def _limit(document: dict[str, Any], service: Service) -> None:
    """Write in what this very model allows: its names, its vocabulary, its context, its size."""
    facts = service.facts
    lengths = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")
    most = {"dimensions": facts.hidden_size, **dict.fromkeys(lengths, facts.max_model_len)}
    for _, _, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            if parameter["name"] == "name":
                parameter["schema"] = {"type": "string", "enum": list(service.names)}
    for name, schema in document["components"]["schemas"].items():
        if not name.endswith("Request"):
            continue
        for field, described in schema.get("properties", {}).items():
            numbers = [part for part in _parts(described) if part.get("type") == "integer"]
            for number in numbers:
                if number.pop("format", None) == TOKEN_ID:
                    number["maximum"] = facts.vocab_size - 1
                limit = most.get(field)
                if limit is not None:
                    number["maximum"] = limit
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {
                "title": "Model",
                "anyOf": [{"type": "string", "enum": [*service.names, ""]}, {"type": "null"}],
            }


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas in it."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from _parts(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _parts(value)
