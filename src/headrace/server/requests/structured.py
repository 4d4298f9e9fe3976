"""Grammars of structured outputs: from OpenAI's field, and vLLM's old and new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.grammar import CHOICE, JSON_OBJECT, JSON_SCHEMA, LARK, REGEX, Grammar
from headrace.errors import InvalidParams

MAX_SCHEMA_NAME_CHARS = 256

GUIDED = {
    "guided_json": JSON_SCHEMA, "guided_regex": REGEX, "guided_choice": CHOICE, "guided_grammar": LARK,
}  # fmt: skip
"""vLLM's fields of a request."""

_OUTPUTS = {"json": JSON_SCHEMA, "regex": REGEX, "choice": CHOICE, "grammar": LARK}
"""vLLM's keys of `structured_outputs`, beside json_object."""

_FORMATS = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {…}}'


def grammar_of(
    response_format: object, structured_outputs: object, guided: Mapping[str, object]
) -> Grammar | None:
    """The grammar that a request sets in at most one of its fields, None without one.

    `guided` holds the fields of GUIDED. Raises InvalidParams for malformed values, and for several grammars.
    """
    found = {
        name: named_grammar(GUIDED[name], value, name) for name, value in guided.items() if value is not None
    }
    by_format = format_grammar(response_format)
    if by_format is not None:
        found["response_format"] = by_format
    by_outputs = _outputs_grammar(structured_outputs)
    if by_outputs is not None:
        found["structured_outputs"] = by_outputs
    if len(found) > 1:
        raise InvalidParams(f"{' and '.join(found)} cannot go together: an output has one form")
    return next(iter(found.values()), None)


def format_grammar(value: object, field: str = "response_format") -> Grammar | None:
    """The grammar of a `response_format`, in `field`. Raises InvalidParams."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar(JSON_OBJECT)
    if kind == "json_schema" and isinstance(value, dict):
        return _named_schema(value.get("json_schema"), f"{field}.json_schema")
    raise InvalidParams(f"{field} must be {_FORMATS}")


def text_grammar(value: object) -> Grammar | None:
    """The grammar of the `text` field of /v1/responses, whose format contains name and schema itself."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidParams("text must be an object")
    given = value.get("format")
    if isinstance(given, dict) and given.get("type") == "json_schema":
        return _named_schema(given, "text.format")
    return format_grammar(given, "text.format")


def _named_schema(value: object, field: str) -> Grammar:
    if not isinstance(value, dict):
        raise InvalidParams(f"{field} must be an object with a name and a schema")
    name, strict, schema = value.get("name"), value.get("strict"), value.get("schema")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_SCHEMA_NAME_CHARS:
        raise InvalidParams(f"{field}.name must be text of 1 to {MAX_SCHEMA_NAME_CHARS} characters")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidParams(f"{field}.strict must be true or false")
    if schema is None:
        return Grammar(JSON_OBJECT)
    if not isinstance(schema, dict):
        raise InvalidParams(f"{field}.schema must be a JSON schema, an object")
    return named_grammar(JSON_SCHEMA, schema, f"{field}.schema")


def _outputs_grammar(value: object) -> Grammar | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidParams("structured_outputs must be an object")
    found = [
        named_grammar(kind, value[key], f"structured_outputs.{key}")
        for key, kind in _OUTPUTS.items()
        if value.get(key) is not None
    ]
    if value.get("json_object") is True:
        found.append(Grammar(JSON_OBJECT))
    if len(found) != 1:
        raise InvalidParams(
            f"structured_outputs must hold one of {', '.join(_OUTPUTS)} and json_object, got {len(found)}"
        )
    return found[0]


def named_grammar(kind: str, source: Any, field: str) -> Grammar:
    """A grammar whose errors name the field that it came from. Raises InvalidParams."""
    try:
        return Grammar(kind, source)
    except InvalidParams as error:
        raise InvalidParams(f"{field}: {error}") from error
