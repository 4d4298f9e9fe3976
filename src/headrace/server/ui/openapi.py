"""The OpenAPI document: what FastAPI knows of the routes, with the answers, the errors, and this model's own limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from headrace.server.anthropic.answers import MessagesErrorAnswer
from headrace.server.anthropic.route import CountTokensAnswer, MessageAnswer
from headrace.server.http.errors import ErrorAnswer
from headrace.server.observability.monitor import StatusAnswer, UsageReport, VersionAnswer
from headrace.server.ollama.about import OllamaModel, OllamaModelList
from headrace.server.ollama.answers import OllamaChatAnswer, OllamaErrorAnswer, OllamaGenerateAnswer
from headrace.server.ollama.route import OllamaEmbedAnswer, OllamaEmbeddingAnswer
from headrace.server.openai.chat import ChatAnswer
from headrace.server.openai.completions import CompletionAnswer
from headrace.server.openai.embeddings import EmbeddingAnswer
from headrace.server.openai.models import DetokenizeAnswer, ModelCard, ModelList, TokenizeAnswer
from headrace.server.openai.responses.builder import ResponsesAnswer
from headrace.server.openai.responses.route import ResponseDeleted
from headrace.server.requests.service import Service

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

    model: type[Any] | None = None
    media: tuple[str, ...] = ()
    unavailable: type[Any] | None = None
    error: type[Any] = ErrorAnswer


ANSWERS: dict[tuple[str, str], Answer] = {
    ("post", "/v1/completions"): Answer(CompletionAnswer, (EVENTS,)),
    ("post", "/v1/chat/completions"): Answer(ChatAnswer, (EVENTS,)),
    ("post", "/v1/responses"): Answer(ResponsesAnswer, (EVENTS,)),
    ("get", "/v1/responses/{response_id}"): Answer(ResponsesAnswer),
    ("delete", "/v1/responses/{response_id}"): Answer(ResponseDeleted),
    ("post", "/v1/messages"): Answer(MessageAnswer, (EVENTS,), error=MessagesErrorAnswer),
    ("post", "/v1/messages/count_tokens"): Answer(CountTokensAnswer, error=MessagesErrorAnswer),
    ("post", "/v1/embeddings"): Answer(EmbeddingAnswer),
    ("post", "/api/chat"): Answer(OllamaChatAnswer, (LINES,), error=OllamaErrorAnswer),
    ("post", "/api/generate"): Answer(OllamaGenerateAnswer, (LINES,), error=OllamaErrorAnswer),
    ("post", "/api/embed"): Answer(OllamaEmbedAnswer, error=OllamaErrorAnswer),
    ("post", "/api/embeddings"): Answer(OllamaEmbeddingAnswer, error=OllamaErrorAnswer),
    ("post", "/api/show"): Answer(OllamaModel, error=OllamaErrorAnswer),
    ("get", "/api/tags"): Answer(OllamaModelList, error=OllamaErrorAnswer),
    ("get", "/api/ps"): Answer(OllamaModelList, error=OllamaErrorAnswer),
    ("get", "/api/version"): Answer(VersionAnswer, error=OllamaErrorAnswer),
    ("post", "/tokenize"): Answer(TokenizeAnswer),
    ("post", "/detokenize"): Answer(DetokenizeAnswer),
    ("get", "/v1/models"): Answer(ModelList),
    ("get", "/v1/models/{name}"): Answer(ModelCard),
    ("get", "/health"): Answer(StatusAnswer, unavailable=StatusAnswer),
    ("get", "/ready"): Answer(StatusAnswer, unavailable=StatusAnswer),
    ("get", "/version"): Answer(VersionAnswer),
    ("get", "/usage"): Answer(UsageReport),
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
    models: dict[str, Any] = {}
    for answer in ANSWERS.values():
        for model in (answer.model, answer.unavailable, answer.error):
            if model is not None:
                models[model.__name__] = model
    _, found = TypeAdapter.json_schemas(
        [(name, "serialization", TypeAdapter(models[name])) for name in sorted(models)],
        ref_template="#/components/schemas/{model}",
    )
    schemas: dict[str, Any] = found["$defs"]
    return schemas


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


def _reference(model: type[Any]) -> dict[str, Any]:
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
