"""GET /docs: the OpenAPI document as a page for people, made here: no script, and nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from headrace.server.ui.openapi import operations

router = APIRouter()

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
}

_STYLE = """
:root { color-scheme: light dark; --edge: #8886; --soft: #8882; --strong: #0b6e8a; }
@media (prefers-color-scheme: dark) { :root { --strong: #6cc7e0; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { margin: 0 0 .25rem; } h2 { font-size: 1rem; margin: 1rem 0 .25rem; }
details { border: 1px solid var(--edge); border-radius: .5rem; margin: .5rem 0; padding: 0 .75rem; }
details[open] { padding-bottom: .75rem; }
summary { cursor: pointer; padding: .5rem 0; }
code, pre { font: .875em/1.45 ui-monospace, monospace; }
pre { background: var(--soft); border-radius: .375rem; overflow-x: auto; padding: .75rem; }
.method { color: var(--strong); display: inline-block; font-weight: 700; min-width: 3.5rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-top: 1px solid var(--edge); padding: .25rem .5rem .25rem 0; text-align: left; vertical-align: top; }
"""

_MAX_DEPTH = 4


@router.get("/docs")
async def docs(request: Request) -> Response:
    """Every route with its fields, their bounds, and its answers."""
    page = render(request.app.openapi())
    return Response(page, media_type="text/html", headers=HEADERS)


def render(document: Mapping[str, Any]) -> str:
    """The page, whole. Every text of the document is escaped."""
    info = document["info"]
    schemas = document.get("components", {}).get("schemas", {})
    routes = "".join(
        _route(method, path, operation, schemas) for method, path, operation in operations(document)
    )
    named = "".join(
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{_schema(schema)}</details>'
        for name, schema in sorted(schemas.items())
    )
    title = f"{escape(info['title'])} {escape(info['version'])}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: API</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f"<header><h1>{title}</h1><p>{escape(info.get('description', ''))} "
        f'The same for machines: <a href="/openapi.json">/openapi.json</a>.</p></header>'
        f"<main><h2>Routes</h2>{routes}<h2>Objects</h2>{named}</main></body></html>"
    )


def _route(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    parts = [f"<p>{escape(operation.get('description', ''))}</p>"]
    for parameter in operation.get("parameters", ()):
        parts.append(f"<p><code>{escape(parameter['name'])}</code>: {_kind(parameter.get('schema', {}))}</p>")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        parts.append("<h2>Body</h2>" + _schema(_resolved(body, schemas)))
    rows = "".join(_answer_rows(operation.get("responses", {})))
    parts.append(f"<h2>Answers</h2><table>{rows}</table>")
    head = f'<span class="method">{escape(method.upper())}</span> <code>{escape(path)}</code>'
    return f"<details><summary>{head}</summary>{''.join(parts)}</details>"


def _answer_rows(responses: Mapping[str, Any]) -> Iterator[str]:
    for status, answer in responses.items():
        kinds = " or ".join(
            f"<code>{escape(media)}</code> {_kind(content.get('schema', {}))}"
            for media, content in answer.get("content", {}).items()
        )
        yield f"<tr><th>{escape(status)}</th><td>{escape(answer.get('description', ''))}</td><td>{kinds}</td></tr>"


def _schema(schema: Mapping[str, Any]) -> str:
    told = f"<p>{escape(schema['description'])}</p>" if "description" in schema else ""
    if "properties" not in schema:
        return told + f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre>"
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><th><code>{escape(name)}</code>{' *' if name in required else ''}</th><td>{_kind(field)}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in schema["properties"].items()
    )
    return f"{told}<table>{rows}</table>"


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    found: Mapping[str, Any] = schemas.get(name, schema)
    return found


def _kind(schema: Mapping[str, Any], depth: int = 0) -> str:
    """A schema in a few words."""
    if depth > _MAX_DEPTH:
        return "…"
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(part, depth + 1) for part in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
    kind = escape(str(schema.get("type", "anything")))
    if kind == "array":
        kind = f"list of {_kind(schema.get('items', {}), depth + 1)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        kind = f"object of {_kind(schema['additionalProperties'], depth + 1)}"
    return kind + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    words = [f"{escape(sign)} {_number(schema[name])}" for name, sign in _SIGNS.items() if name in schema]
    return f" <small>({', '.join(words)})</small>" if words else ""


def _number(value: Any) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return escape(str(int(value) if whole else value))


_SIGNS = {
    "minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "minLength": "characters ≥",
    "maxLength": "characters ≤", "minItems": "entries ≥", "maxItems": "entries ≤", "maxProperties": "entries ≤",
}  # fmt: skip
