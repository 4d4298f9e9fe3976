"""Arguments as text between tags, for formats that `headrace.text.tools.tagged` reads.

A text stands as it is, up to the closing tag; every other value is JSON. Of the keywords of a text's schema, `enum`,
`const`, `minLength`, `maxLength` and `pattern` are enforced; `format` is an annotation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.tools.grammar.pythonic import DEFINITIONS, checked_properties
from headrace.text.tools.grammar.words import Prose, ToolSchema, json_value, quoted
from headrace.text.tools.tagged import MAX_KEY_CHARS, Tags
from headrace.text.tools.value_kinds import TEXT, kinds_of

_ENFORCED = frozenset({"enum", "const", "minLength", "maxLength", "pattern"})
_NOTES = frozenset(
    {"type", "format", "title", "description", "default", "examples", "$comment", "deprecated"}
)


def any_values(tags: Tags, prose: Prose, tools: Sequence[ToolSchema]) -> list[str]:
    """Rules that the others use: `any_value`, an argument of any name."""
    around = "\n" if tags.lines else ""
    literal = prose.words.literal
    return [
        f"any_value: {literal(tags.key)} ANY_KEY {literal(tags.keyed + _gap(tags) + tags.value + around)} "
        f"{json_value({}, tools[0])} {literal(around + tags.ended)} {quoted(chr(10))}",
        f"ANY_KEY: /[A-Za-z0-9_.\\-]{{1,{MAX_KEY_CHARS // 4}}}/",
    ]


def tagged_arguments(name: str, tool: ToolSchema, tags: Tags, prose: Prose) -> list[str]:
    """The rule `name`: the arguments of a tool, in the order of the schema.

    Raises InvalidParams for a schema that constrains more than each argument by itself, or a text by keywords that
    cannot be enforced in this format.
    """
    required = checked_properties(tool, "text between tags")
    schema = tool.parameters
    properties = schema.get("properties", {})
    if not properties and schema.get("additionalProperties") in (None, True):
        return [f"{name}: any_value*"]
    rules: list[str] = []
    parts: list[str] = []
    for index, (key, value) in enumerate(properties.items()):
        if any(mark in key for mark in ("<", ">", "\n")) or len(key) > MAX_KEY_CHARS or key != key.strip():
            raise InvalidParams(
                f"the parameters of tool {tool.name!r:.80} name {key!r:.80}, which tags cannot hold"
            )
        rules += _argument(f"{name}_{index}", key, value, tool, tags, prose)
        parts.append(f"{name}_{index}" + ("" if key in required else "?"))
    return [f"{name}: {' '.join(parts)}" if parts else f'{name}: ""', *rules]


def _gap(tags: Tags) -> str:
    return "\n" if tags.value else ""


def _argument(
    name: str, key: str, schema: Mapping[str, Any], tool: ToolSchema, tags: Tags, prose: Prose
) -> list[str]:
    literal = prose.words.literal
    around = "\n" if tags.lines else ""
    head = literal(tags.key + key + tags.keyed + _gap(tags) + tags.value + around)
    ended = around + tags.ended
    line = quoted("\n")
    if kinds_of(tool.parameters, key) != TEXT:
        shared = {word: tool.parameters[word] for word in DEFINITIONS if word in tool.parameters}
        return [f"{name}: {head} {json_value({**shared, **schema}, tool)} {literal(ended)} {line}"]
    schema = _resolved(schema, tool, key)
    if "const" in schema or "enum" in schema:
        choices = [schema["const"]] if "const" in schema else schema["enum"]
        if any(tags.ended in choice for choice in choices):
            raise InvalidParams(
                f"the parameters of tool {tool.name!r:.80} have a value with {tags.ended} in it"
            )
        return [f"{name}: {head} ({' | '.join(map(quoted, choices))}) {literal(ended)} {line}"]
    return [
        f"{name}: {head} {name}_text {line}",
        f"{name.upper()}: {_text(schema, tool, key)} & ~(ANY {quoted(tags.ended)} ANY)",
        *prose.until(f"{name}_text", ended, name.upper()),
    ]


def _text(schema: Mapping[str, Any], tool: ToolSchema, key: str) -> str:
    """A terminal's body: text by the keywords of its schema."""
    least, most, pattern = (schema.get(word) for word in ("minLength", "maxLength", "pattern"))
    parts = []
    if least is not None or most is not None:
        if not all(bound is None or (type(bound) is int and 0 <= bound <= 2**16) for bound in (least, most)):
            raise InvalidParams(
                f"the parameters of tool {tool.name!r:.80} give {key!r:.80} an impossible length"
            )
        parts.append(f"/(?s:.{{{least or 0},{'' if most is None else most}}})/")
    if pattern is not None:
        if not isinstance(pattern, str):
            raise InvalidParams(
                f"the parameters of tool {tool.name!r:.80} give {key!r:.80} a pattern that is not text"
            )
        body = pattern.replace("\\/", "/").replace("/", "\\/").replace("\n", "\\n")
        start = "" if body.startswith("^") else "(?s:.*)"
        end = "" if body.endswith("$") and not body.endswith("\\$") else "(?s:.*)"
        body = body.removeprefix("^") if not start else body
        parts.append(f"/{start}(?:{body.removesuffix('$') if not end else body}){end}/")
    return " & ".join(parts) if parts else "ANY"


def _resolved(schema: Mapping[str, Any], tool: ToolSchema, key: str) -> Mapping[str, Any]:
    """The schema of a text without references. Raises InvalidParams for keywords that cannot be enforced."""
    for _ in range(8):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        target: Any = tool.parameters
        for step in reference.removeprefix("#/").split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        rest = {word: each for word, each in schema.items() if word != "$ref"}
        schema = {**target, **rest} if isinstance(target, Mapping) else rest
    unknown = sorted(set(schema) - _ENFORCED - _NOTES)
    if unknown:
        raise InvalidParams(
            f"the parameters of tool {tool.name!r:.80} constrain {key!r:.80} by {unknown[0]!r:.80}, which cannot be "
            "enforced in this model's format of calls, text between tags"
        )
    texts = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if not all(isinstance(each, str) for each in texts):
        raise InvalidParams(f"the parameters of tool {tool.name!r:.80} are not JSON: {json.dumps(key)[:80]}")
    return schema
