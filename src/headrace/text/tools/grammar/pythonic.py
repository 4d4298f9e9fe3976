"""Answers that are a list of calls in Python's syntax, `[f(city="Paris", days=2), g()]`, or text.

The values are written as JSON, which the parser reads as well: it knows `true`, `false` and `null`, and llguidance
writes no escapes that Python reads differently.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.tools.grammar.words import SPACE, Prose, ToolSchema, json_value, quoted

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEFINITIONS = ("$defs", "definitions")
_KNOWN = frozenset(
    {
        "type", "properties", "required", "additionalProperties", *DEFINITIONS,
        "title", "description", "default", "examples", "$schema", "$id", "$comment",
    }
)  # fmt: skip
"""Keywords of a schema that constrain only an object's keys and their values."""


def pythonic_answer(prose: Prose, tools: Sequence[ToolSchema], parallel: bool) -> list[str]:
    """`answer`: text, or a list of calls and text after it. `reply`: the same.

    Without `parallel` the answer ends with its only call. Raises InvalidParams for a schema that constrains more than
    each argument by itself.
    """
    other = prose.others(())
    return [
        "reply: answer",
        "answer: ANY | first_other other* ANY | calls" + (" other* ANY" if parallel else ""),
        f"first_other: FIRST {other}",
        f"other: SAFE {other}",
        rf"FIRST: SAFE & /[{SPACE}]*[^{SPACE}\[](?s:.)*/",
        *pythonic_calls(prose, tools, parallel),
    ]


def pythonic_calls(prose: Prose, tools: Sequence[ToolSchema], parallel: bool) -> list[str]:
    """The rule `calls`, a list of calls, without `parallel` of one call. Raises as `pythonic_answer` does."""
    every = range(len(tools))
    rules = [
        'calls: first more* "]"' if parallel else 'calls: first "]"',
        "first: " + " | ".join(f'until_call_{index} arguments_{index} ")"' for index in every),
        'more: "," " "? (' + " | ".join(f"call_{index}" for index in every) + ")",
        *any_arguments(tools),
    ]
    for index, tool in enumerate(tools):
        opening = quoted(f"{tool.name}(")
        rules += [
            f'until_call_{index}[lazy]: BLANK "[" BLANK {opening}',
            f'call_{index}: {opening} arguments_{index} ")"',
            *python_arguments(f"arguments_{index}", tool),
        ]
    return rules


def any_arguments(tools: Sequence[ToolSchema]) -> list[str]:
    """The rule `any_arguments`, which `python_arguments` uses."""
    return [
        'any_arguments: (any_argument (", " any_argument)*)?',
        f'any_argument: ANY_NAME "=" {json_value({}, tools[0])}',
        "ANY_NAME: /[A-Za-z_][A-Za-z0-9_]*/ & ~(" + " | ".join(map(quoted, keyword.kwlist)) + ")",
    ]


def python_arguments(name: str, tool: ToolSchema) -> list[str]:
    """The rule `name`: arguments with their keywords, in the order of the schema. Raises as `pythonic_answer` does."""
    required = checked_properties(tool, "Python's syntax")
    for key in tool.parameters.get("properties", {}):
        if not _NAME.fullmatch(key) or keyword.iskeyword(key):
            raise InvalidParams(
                f"the parameters of tool {tool.name!r:.80} name {key!r:.80}, which is not a keyword argument of Python"
            )
    schema = tool.parameters
    properties = schema.get("properties", {})
    if not properties and schema.get("additionalProperties") in (None, True):
        return [f"{name}: any_arguments"]
    shared = {key: schema[key] for key in DEFINITIONS if key in schema}
    # The rest of the arguments, after none of them was written (first), or some (next).
    rules = [f"{name}: {name}_first_0"]
    for index, (key, value) in enumerate(properties.items()):
        written = f'"{key}=" {json_value({**shared, **value}, tool)}'
        optional = key not in required
        rules += [
            f"{name}_value_{index}: {written}",
            f"{name}_first_{index}: {name}_value_{index} {name}_next_{index + 1}"
            + (f" | {name}_first_{index + 1}" if optional else ""),
            f'{name}_next_{index}: ", " {name}_value_{index} {name}_next_{index + 1}'
            + (f" | {name}_next_{index + 1}" if optional else ""),
        ]
    end = len(properties)
    return [*rules, f'{name}_first_{end}: ""', f'{name}_next_{end}: ""']


def checked_properties(tool: ToolSchema, syntax: str) -> frozenset[str]:
    """The keys that the arguments must have. Raises InvalidParams for a schema that constrains more than each argument
    by itself, which grammars of calls in this syntax cannot enforce."""
    schema: Mapping[str, Any] = tool.parameters
    where = f"the parameters of tool {tool.name!r:.80}"
    unknown = sorted(set(schema) - _KNOWN)
    if unknown:
        raise InvalidParams(
            f"{where} use {unknown[0]!r:.80}, which cannot be enforced in this model's format of calls, {syntax}"
        )
    if schema.get("type", "object") != "object":
        raise InvalidParams(f"{where} must be those of an object")
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping) or not all(
        isinstance(one, Mapping) for one in properties.values()
    ):
        raise InvalidParams(f"{where} must have properties that are schemas, objects")
    required = schema.get("required", ())
    if not isinstance(required, (list, tuple)) or not all(
        isinstance(one, str) and one in properties for one in required
    ):
        raise InvalidParams(f"{where} require what is not one of their properties")
    return frozenset(required)
