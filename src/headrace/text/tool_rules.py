"""What a call of a tool looks like inside of its markers, as rules of llguidance's Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.grammar_words import quoted

JSON_LAYOUT = {"whitespace_pattern": " "}
"""What llguidance lets stand between the parts of JSON, at most: one space. A model that is unsure of its next token
would fill any more room with blanks."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool's name and the JSON Schema of its arguments, an object."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})


def json_value(schema: Mapping[str, Any], tool: ToolSchema) -> str:
    """JSON that follows a schema of `tool`. Raises InvalidParams where the schema is not JSON itself."""
    try:
        written = json.dumps({**schema, "x-guidance": JSON_LAYOUT}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParams(f"the parameters of tool {tool.name!r:.80} are not JSON") from error
    return f"%json {written}"


def object_rules(tools: Sequence[ToolSchema], key: str) -> list[str]:
    """The rule `tool`, one call as `{"name": …, key: …}` with the keys in this order; the arguments of the tool with
    the number n are the rule `arguments_n`."""
    rules = ["tool: " + " | ".join(f"tool_{index}" for index in range(len(tools)))]
    for index, tool in enumerate(tools):
        head = f'{{"name": {quoted(tool.name)}, "{key}": '
        rules += [
            f'tool_{index}: {quoted(head)} arguments_{index} "}}"',
            f"arguments_{index}: {json_value({'type': 'object', **tool.parameters}, tool)}",
        ]
    return rules
