"""Bodies at the bounds, and beyond, of what no schema describes: grammars, tools, conversations, free text."""

from __future__ import annotations

import math
from typing import Any

from headrace.core.grammar import MAX_CHOICES, MAX_GRAMMAR_CHARS, MAX_NESTING
from headrace.server.openai.responses.schemas import (
    MAX_METADATA,
    MAX_METADATA_KEY_CHARS,
    MAX_METADATA_VALUE_CHARS,
)
from headrace.server.requests.structured import MAX_SCHEMA_NAME_CHARS
from headrace.text.templates import messages
from headrace.text.templates.messages import MAX_MESSAGES, MAX_TOOLS
from headrace.text.tools.call_json import MAX_NAME_CHARS
from headrace.text.tools.request import MAX_DESCRIPTION_CHARS, MAX_WEIGHT

Fields = dict[str, Any]

MESSAGES_API = ("/v1/messages", "/v1/messages/count_tokens")


def deep(levels: int) -> Any:
    """An object of so many levels."""
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def tool(name: str = "f", **fields: Any) -> Fields:
    return {"type": "function", "function": {"name": name, **fields}}


def own_tool(name: str = "f", **fields: Any) -> Fields:
    """As Anthropic's API has it."""
    return {"name": name, "input_schema": {"type": "object"}} | fields


def output_format(schema: Any) -> Fields:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def marked(times: int) -> Fields:
    block = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    return {"system": [block] * times}


def allowed_tools(count: int) -> Fields:
    choice = {"mode": "auto", "tools": [tool()] * count}
    return {"tools": [tool()], "tool_choice": {"type": "allowed_tools", "allowed_tools": choice}}


def chat_format(name: str = "x", schema: Any = None) -> Fields:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema or {}}}}


def text_format(name: str = "x", schema: Any = None) -> Fields:
    return {"text": {"format": {"type": "json_schema", "name": name, "schema": schema or {}}}}


def said(content: Any, role: str = "user") -> Fields:
    return {"messages": [{"role": role, "content": content}], "prompt": None}


def nested_regex(levels: int) -> str:
    return "(" * levels + "a" + ")" * levels


LONG = "a" * MAX_GRAMMAR_CHARS
HUGE = "a" * 9_000_000
TOO_LONG = "the context of 512 tokens|the chat is too large"
NAME = "x" * MAX_SCHEMA_NAME_CHARS
TURN = {"role": "user", "content": "a"}

WITHIN: dict[str, list[Fields]] = {
    "guided_regex": [{"guided_regex": LONG}, {"guided_regex": nested_regex(MAX_NESTING)}],
    "guided_grammar": [{"guided_grammar": LONG}],
    "guided_choice": [{"guided_choice": ["a"] * MAX_CHOICES}],
    "guided_json": [{"guided_json": deep(MAX_NESTING)}, {"guided_json": {"a": "a" * (MAX_GRAMMAR_CHARS - 9)}}],
    "structured_outputs": [{"structured_outputs": {"choice": ["a"] * MAX_CHOICES}}],
    "response_format": [chat_format(NAME), chat_format(schema=deep(MAX_NESTING))],
    "text.format": [text_format(NAME), text_format(schema=deep(MAX_NESTING))],
    "metadata": [
        {"metadata": {str(number): "x" for number in range(MAX_METADATA)}},
        {"metadata": {"k" * MAX_METADATA_KEY_CHARS: "v" * MAX_METADATA_VALUE_CHARS}},
    ],
    "tools": [
        {"tools": [tool(f"f{number}") for number in range(MAX_TOOLS)]} | said("a"),
        {"tools": [tool("f" * MAX_NAME_CHARS)]} | said("a"),
        {"tools": [tool(description="d" * MAX_DESCRIPTION_CHARS)]} | said("a"),
        {"tools": [tool(parameters=deep(messages.MAX_NESTING - 4))]} | said("a"),
    ],
    "tool_choice": [allowed_tools(MAX_TOOLS)],
    "chat_template_kwargs": [{"chat_template_kwargs": {"x": deep(messages.MAX_NESTING - 1)}} | said("a")],
    "/v1/responses input": [{"input": [TURN] * MAX_MESSAGES}],
    **{
        f"{path} {name}": tried
        for path in MESSAGES_API
        for name, tried in {
            "tools": [
                {"tools": [own_tool(f"f{number}") for number in range(MAX_TOOLS)]},
                {"tools": [own_tool("f" * MAX_NAME_CHARS)]},
                {"tools": [own_tool(description="d" * MAX_DESCRIPTION_CHARS)]},
                {"tools": [own_tool(input_schema=deep(messages.MAX_NESTING - 4))]},
            ],
            "tool_choice": [{"tools": [own_tool()], "tool_choice": {"type": "tool", "name": "f"}}],
            "output_config.format": [output_format(deep(MAX_NESTING))],
            "system": [marked(4)],
            "cache_control": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        }.items()
    },
    **{name: [{name: None}] for name in ("background", "conversation")},
    "format": [{"format": deep(MAX_NESTING)}, {"format": {"a": "a" * (MAX_GRAMMAR_CHARS - 9)}}, {"format": ""}],
}  # fmt: skip
"""By field, or route and field. Each is taken, or refused for another reason: no engine of these tests follows
grammars, and the context is short."""

_CALLED = {"type": "tool", "name": "g"}
_TOO_MANY = [own_tool(f"f{number}") for number in range(MAX_TOOLS + 1)]

STORED = ("background", "conversation")

BEYOND: dict[str, list[tuple[Fields, str]]] = {
    "guided_regex": [
        ({"guided_regex": LONG + "a"}, "guided_regex"),
        ({"guided_regex": nested_regex(MAX_NESTING + 1)}, "guided_regex"),
    ],
    "guided_grammar": [({"guided_grammar": LONG + "a"}, "guided_grammar")],
    "guided_choice": [({"guided_choice": ["a"] * (MAX_CHOICES + 1)}, "guided_choice")],
    "guided_json": [
        ({"guided_json": deep(MAX_NESTING + 1)}, "guided_json"),
        ({"guided_json": {"a": LONG}}, "guided_json"),
        ({"guided_json": {"maximum": math.nan}}, "guided_json"),
        ({"guided_json": {"maximum": math.inf}}, "guided_json"),
        ({"guided_json": '{"maximum": -Infinity}'}, "guided_json"),
    ],
    "structured_outputs": [
        ({"structured_outputs": {"choice": ["a"] * (MAX_CHOICES + 1)}}, r"structured_outputs\.choice"),
        ({"structured_outputs": {"json": {"maximum": math.nan}}}, r"structured_outputs\.json"),
    ],
    "response_format": [
        (chat_format(NAME + "x"), r"response_format\.json_schema\.name"),
        (chat_format(schema=deep(MAX_NESTING + 1)), r"response_format\.json_schema\.schema"),
        (chat_format(schema={"maximum": math.nan}), r"response_format\.json_schema\.schema"),
    ],
    "text.format": [
        (text_format(NAME + "x"), r"text\.format\.name"),
        (text_format(schema=deep(MAX_NESTING + 1)), r"text\.format\.schema"),
    ],
    "metadata": [
        ({"metadata": {str(number): "x" for number in range(MAX_METADATA + 1)}}, "metadata"),
        ({"metadata": {"k" * (MAX_METADATA_KEY_CHARS + 1): "v"}}, "metadata"),
        ({"metadata": {"k": "v" * (MAX_METADATA_VALUE_CHARS + 1)}}, "metadata"),
    ],
    "tools": [
        ({"tools": [tool(f"f{number}") for number in range(MAX_TOOLS + 1)]} | said("a"), "tools holds"),
        ({"tools": [tool("f" * (MAX_NAME_CHARS + 1))]} | said("a"), r"tools\[0\]"),
        ({"tools": [tool(description="d" * (MAX_DESCRIPTION_CHARS + 1))]} | said("a"), r"tools\[0\]"),
        ({"tools": [tool(parameters=deep(messages.MAX_NESTING + 2))]} | said("a"), r"tools\[0\]"),
        ({"tools": [tool(parameters={"a": "a" * MAX_WEIGHT})]} | said("a"), "too large"),
        ({"tools": [tool(), tool()]} | said("a"), r"tools\[1\] has the name of an earlier tool"),
    ],
    "tool_choice": [(allowed_tools(MAX_TOOLS + 1), "tool_choice")],
    "chat_template_kwargs": [
        ({"chat_template_kwargs": {"x": deep(messages.MAX_NESTING)}} | said("a"), "nested deeper"),
        ({"chat_template_kwargs": {"x": HUGE}} | said("a"), "too large"),
    ],
    "messages[].content": [(said(HUGE), TOO_LONG), (said([{"type": "text", "text": "a"}] * 30_000), TOO_LONG)],
    "messages[].content[].text": [(said([{"type": "text", "text": HUGE}]), TOO_LONG)],
    "messages[].role": [(said("a", HUGE), TOO_LONG)],
    "input": [({"input": [TURN] * (MAX_MESSAGES + 1)}, "input"), ({"input": HUGE}, TOO_LONG)],
    "input[]": [({"input": ["a", HUGE]}, TOO_LONG)],
    "prompt[]": [({"prompt": ["a", HUGE]}, f"prompt is not supported|{TOO_LONG}")],
    "instructions": [({"instructions": HUGE}, TOO_LONG)],
    "prompt": [({"prompt": HUGE}, f"prompt is not supported|{TOO_LONG}")],
    **{name: [({name: value}, name) for value in ("x", 1, {"id": "x"})] for name in STORED},
    **{
        f"{path} {name}": tried
        for path in MESSAGES_API
        for name, tried in {
            "tools": [
                ({"tools": _TOO_MANY}, "tools holds"),
                ({"tools": [own_tool("f" * (MAX_NAME_CHARS + 1))]}, r"tools\[0\]"),
                ({"tools": [own_tool(description="d" * (MAX_DESCRIPTION_CHARS + 1))]}, r"tools\[0\]"),
                ({"tools": [own_tool(input_schema=deep(messages.MAX_NESTING + 2))]}, r"tools\[0\]"),
                ({"tools": [own_tool(input_schema={"a": "a" * MAX_WEIGHT})]}, "too large"),
                ({"tools": [own_tool(), own_tool()]}, r"tools\[1\] has the name of an earlier tool"),
            ],
            "tool_choice": [({"tools": [own_tool()], "tool_choice": _CALLED}, "tool_choice")],
            "output_config.format": [
                (output_format(deep(MAX_NESTING + 1)), r"output_config\.format"),
                (output_format({"maximum": math.nan}), r"output_config\.format"),
            ],
            "system": [(marked(5), "at most 4"), ({"system": HUGE}, TOO_LONG), ({"system": 7}, "system")],
            "cache_control": [({"cache_control": value}, "cache_control") for value in ("x", {"type": "x"})],
        }.items()
    },
    "format": [({"format": value}, "format") for value in (deep(MAX_NESTING + 1), {"maximum": math.nan}, {"a": LONG})],
    "/api/chat messages[].content": [
        ({"messages": [TURN | {"content": HUGE}]}, TOO_LONG), ({"messages": [TURN | {"content": ["a"]}]}, "content"),
    ],
    "/api/chat messages[].content[].text": [({"messages": [TURN | {"content": [{"text": HUGE}]}]}, "content")],
    "/api/generate prompt": [({"prompt": HUGE, "truncate": False}, TOO_LONG), ({"prompt": HUGE}, TOO_LONG)],
    "system": [({"system": HUGE}, TOO_LONG)],
    "/api/embed input": [({"input": HUGE, "truncate": False}, TOO_LONG)],
    "/api/embed input[]": [({"input": ["a", HUGE], "truncate": False}, TOO_LONG)],
    "/api/embeddings prompt": [({"prompt": ["a"]}, "prompt")],
}  # fmt: skip
"""By field: bodies, and what an answer with 400 says of each."""
