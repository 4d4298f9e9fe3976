"""Bounds of requests, read from the schemas of their models: which fields have none, and values at each and beyond."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from tests.server.access.test_keys import flat

Schema = Mapping[str, Any]

ITEM, ENTRY = "[]", "{}"
"""Parts of a path: what is in a list, and what is in an object of any keys."""

LARGE: dict[str, Any] = {"messages": {"role": "user", "content": "a"}}
"""Items of lists that a schema alone does not say how to make."""


@dataclass(frozen=True)
class Node:
    """A part of a body, without alternatives."""

    path: tuple[str, ...]
    schema: Schema

    @property
    def name(self) -> str:
        return ".".join(self.path).replace(f".{ITEM}", ITEM).replace(f".{ENTRY}", ENTRY)

    @property
    def bounded(self) -> bool:
        schema, kind = self.schema, self.schema.get("type")
        if "enum" in schema or "const" in schema or kind in ("boolean", "null"):
            return True
        if kind in ("integer", "number"):
            low = "minimum" in schema or "exclusiveMinimum" in schema
            return low and ("maximum" in schema or "exclusiveMaximum" in schema)
        if kind == "object":
            return "properties" in schema or "maxProperties" in schema
        return (
            {"string": "maxLength", "array": "maxItems"}.get(str(kind), "type") in schema if kind else False
        )


@dataclass(frozen=True)
class Case:
    """A value for one field, which its bounds allow or not."""

    node: Node
    value: Any
    allowed: bool

    @property
    def field(self) -> str:
        return self.node.path[0]

    def put_into(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {**body, **_wrapped(self.node.path, self.value)}

    def __str__(self) -> str:
        return f"{self.node.name} = {self.value!r:.60}"


def bodies(app: FastAPI) -> dict[str, type[BaseModel]]:
    """The models of all bodies that an app takes, by path."""
    return {
        path: parameter.field_info.annotation
        for path, route in flat(app.routes)
        if isinstance(route, APIRoute)
        for parameter in route.dependant.body_params
    }  # type: ignore[misc]


def nodes(model: type[BaseModel]) -> list[Node]:
    schema = model.model_json_schema()
    found = list(_nodes(schema, schema.get("$defs", {}), ()))
    return [node for node in found if node.path]


def unbounded(model: type[BaseModel]) -> set[str]:
    """Names of what has no bound in its schema: it must have one that is checked by hand."""
    return {node.name for node in nodes(model) if not node.bounded}


def cases(model: type[BaseModel]) -> Iterator[Case]:
    """Values at each bound, and beyond it by as little as there is; NaN and infinities."""
    for node in nodes(model):
        for value, allowed in _values(node):
            yield Case(node, value, allowed)


def _nodes(schema: Schema, definitions: Mapping[str, Schema], path: tuple[str, ...]) -> Iterator[Node]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _nodes(part, definitions, path)
        return
    yield Node(path, schema)
    for name, part in schema.get("properties", {}).items():
        yield from _nodes(part, definitions, (*path, name))
    for key, part in (("items", ITEM), ("additionalProperties", ENTRY)):
        if isinstance(schema.get(key), Mapping):
            yield from _nodes(schema[key], definitions, (*path, part))


def _values(node: Node) -> Iterator[tuple[Any, bool]]:
    schema = node.schema
    match schema.get("type"):
        case "integer":
            for key, step in (("minimum", -1), ("maximum", 1)):
                if key in schema:
                    yield schema[key], True
                    yield schema[key] + step, False
        case "number":
            for key, towards in (("minimum", -math.inf), ("maximum", math.inf)):
                if key in schema:
                    yield schema[key], True
                    yield math.nextafter(schema[key], towards), False
            for key, towards in (("exclusiveMinimum", math.inf), ("exclusiveMaximum", -math.inf)):
                if key in schema:
                    yield schema[key], False
                    yield math.nextafter(schema[key], towards), True
            for number in (math.nan, math.inf, -math.inf):
                yield number, False
        case "string":
            for key, step in (("minLength", -1), ("maxLength", 1)):
                if key in schema:
                    yield "x" * schema[key], True
                    yield "x" * (schema[key] + step), False
        case "array":
            item = LARGE.get(node.path[0]) or example(schema["items"])
            for key, step in (("minItems", -1), ("maxItems", 1)):
                if key in schema:
                    yield [item] * schema[key], True
                    yield [item] * (schema[key] + step), False
        case "object" if "maxProperties" in schema:
            item = example(schema["additionalProperties"])
            yield {str(key): item for key in range(schema["maxProperties"])}, True
            yield {str(key): item for key in range(schema["maxProperties"] + 1)}, False


def example(schema: Schema) -> Any:
    """A small value that a schema allows."""
    match schema.get("type"):
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "array":
            return [example(schema["items"])]
        case _:
            return "x" * max(1, schema.get("minLength", 1))


def _wrapped(path: tuple[str, ...], value: Any) -> Any:
    for part in reversed(path):
        value = [value] if part == ITEM else {"5": value} if part == ENTRY else {part: value}
    return value
