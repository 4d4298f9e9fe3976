"""Arguments that a model writes as text, not as JSON: what a JSON Schema says of their types, and their JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

Kinds = frozenset[str]

ANY_KIND: Kinds = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
TEXT: Kinds = frozenset({"string"})

_MAX_LEVELS = 8
_WORDS = {"True": "true", "False": "false", "None": "null"}


def kinds_of(parameters: Mapping[str, Any] | None, key: str) -> Kinds:
    """JSON types that the argument `key` may have by the schema of a tool's arguments; all if it does not say."""
    properties = None if parameters is None else parameters.get("properties")
    if not isinstance(properties, Mapping):
        return ANY_KIND
    assert parameters is not None
    return _kinds(properties.get(key), parameters, _MAX_LEVELS)


def _kinds(schema: Any, root: Mapping[str, Any], levels: int) -> Kinds:
    if not isinstance(schema, Mapping) or not levels:
        return ANY_KIND
    found = ANY_KIND
    declared = schema.get("type")
    if isinstance(declared, str):
        found &= {declared}
    elif isinstance(declared, (list, tuple)):
        found &= {each for each in declared if isinstance(each, str)}
    if isinstance(schema.get("enum"), (list, tuple)):
        found &= {_kind_of(each) for each in schema["enum"]}
    if "const" in schema:
        found &= {_kind_of(schema["const"])}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        found &= _kinds(target, root, levels - 1)
    for word in ("anyOf", "oneOf"):
        choices = schema.get(word)
        if isinstance(choices, (list, tuple)) and choices:
            found &= frozenset().union(*(_kinds(each, root, levels - 1) for each in choices))
    if isinstance(schema.get("allOf"), (list, tuple)):
        for each in schema["allOf"]:
            found &= _kinds(each, root, levels - 1)
    return found or ANY_KIND


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case list() | tuple():
            return "array"
    return "object"


def as_json(text: str, kinds: Kinds) -> str:
    """A value in JSON: the text itself where it is JSON of one of these kinds, else a string of the text."""
    if kinds == TEXT:
        return as_string(text)
    written = text.strip()
    if "string" not in kinds:
        written = _WORDS.get(written, written)
    try:
        kind = _kind_of(json.loads(written, parse_constant=_no_json))
        written.encode()
    except (ValueError, RecursionError):
        return as_string(text)
    fits = kind in kinds or (kind == "integer" and "number" in kinds)
    return written if fits or "string" not in kinds else as_string(text)


def as_string(text: str) -> str:
    """A string in JSON, of text that may be a part of a value."""
    return json.dumps(text, ensure_ascii=False)


def _no_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
