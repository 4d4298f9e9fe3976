"""What requests say of tools, and conversations with tools for templates that know of none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import InvalidParams, RequestError
from headrace.text.templates.chat import ChatTemplate
from headrace.text.templates.conversation import adapted, knows_tools
from headrace.text.templates.messages import MAX_NESTING, MAX_TOOLS
from headrace.text.tools.call_json import MAX_NAME_CHARS
from headrace.text.tools.request import (
    MAX_DESCRIPTION_CHARS,
    MAX_WEIGHT,
    NO_TOOLS,
    Tool,
    ToolUse,
    checked_tool_choice,
    checked_tool_use,
)

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
NESTED: dict[str, Any] = {}
for _ in range(MAX_NESTING):
    NESTED = {"x": NESTED}
WEATHER = Tool("weather", "The weather", SCHEMA)


def function(name: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [function(name) for name in names]},
    }


TOOLS = [function("weather", description="The weather", parameters=SCHEMA), function("now")]


@pytest.mark.parametrize(
    ("choice", "parallel", "use"),
    [
        (None, None, ToolUse((WEATHER, Tool("now")))),
        ("auto", True, ToolUse((WEATHER, Tool("now")))),
        ("auto", False, ToolUse((WEATHER, Tool("now")), parallel=False)),
        ("required", None, ToolUse((WEATHER, Tool("now")), forced=True)),
        ("none", None, NO_TOOLS),
        ({"type": "function", "function": {"name": "now"}}, True, ToolUse((Tool("now"),), True, False)),
        ({"type": "function", "name": "now"}, None, ToolUse((Tool("now"),), True, False)),
        (allowed("auto", "now"), None, ToolUse((Tool("now"),))),
        (allowed("required", "now", "weather"), None, ToolUse((WEATHER, Tool("now")), True)),
        (
            allowed("required", "now")["allowed_tools"] | {"type": "allowed_tools"},
            False,
            ToolUse((Tool("now"),), True, False),
        ),
    ],
)
def test_choices(choice: Any, parallel: bool | None, use: ToolUse) -> None:
    assert checked_tool_use(TOOLS, choice, parallel) == use


@pytest.mark.parametrize(
    "choice",
    ["none", "auto", "required", {"type": "function", "name": "now"},
     {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]}],
)  # fmt: skip
def test_choices_are_described_as_they_are_written(choice: Any) -> None:
    assert checked_tool_choice(choice).described == choice


def test_both_apis_write_tools() -> None:
    flat = {
        "type": "function",
        "name": "weather",
        "description": "The weather",
        "parameters": SCHEMA,
        "strict": True,
    }
    assert checked_tool_use([flat], None).tools == (replace(WEATHER, strict=True),)
    assert checked_tool_use([flat | {"strict": None}], None).tools == (WEATHER,)
    assert WEATHER.described == TOOLS[0]
    assert checked_tool_use(None, None) == checked_tool_use([], "auto") == NO_TOOLS


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ("weather", None), ({"a": 1}, None), ([7], None), ([{}], None), ([{"type": "web_search"}], None),
        ([{"type": "function", "function": 7}], None), ([function(7)], None), ([function("")], None),
        ([function("a b")], None), ([function("x" * (MAX_NAME_CHARS + 1))], None), ([function("é")], None),
        ([function("f", description=7)], None), ([function("f", parameters=[])], None),
        ([function("f", description="x" * (MAX_DESCRIPTION_CHARS + 1))], None),
        ([function("f"), function("f")], None),
        ([function(f"f{number}") for number in range(MAX_TOOLS + 1)], None),
        ([function("f", parameters={"x": NESTED})], None), ([function("f", parameters={"x": {1, 2}})], None),
        ([function("f", parameters={"x": "y" * MAX_WEIGHT})], None),
        (TOOLS, "sometimes"), (TOOLS, 7), (TOOLS, {}), (TOOLS, {"type": "function"}), (TOOLS, ["auto"]),
        (TOOLS, {"type": "function", "function": {"name": "unknown"}}), (TOOLS, {"type": "allowed_tools"}),
        (TOOLS, {"type": "allowed_tools", "allowed_tools": 7}), (TOOLS, allowed("auto")),
        (TOOLS, allowed("none", "now")), (TOOLS, allowed("auto", "unknown")),
        (TOOLS, allowed("auto", *["now"] * (MAX_TOOLS + 1))),
        (TOOLS, allowed("auto", 7)), ([], allowed("auto", "now")),  # type: ignore[arg-type]
        (TOOLS, {"type": "allowed_tools", "mode": "auto", "tools": [7]}),
        (TOOLS, {"type": "function", "function": {"name": 7}}),
        (None, "required"), ([], {"type": "function", "function": {"name": "now"}}),
    ],
)  # fmt: skip
def test_what_is_refused(tools: Any, choice: Any) -> None:
    with pytest.raises(InvalidParams):
        checked_tool_use(tools, choice)


def test_the_largest_that_is_allowed() -> None:
    longest = function("x" * MAX_NAME_CHARS, description="x" * MAX_DESCRIPTION_CHARS)
    tools = [longest, *(function(f"f{number}") for number in range(MAX_TOOLS - 1))]
    assert len(checked_tool_use(tools, None).tools) == MAX_TOOLS
    described = [function(f"f{number}", description="x" * MAX_DESCRIPTION_CHARS) for number in range(16)]
    assert len(checked_tool_use(described[:15], None).tools) == 15
    with pytest.raises(InvalidParams):
        checked_tool_use(described, None)


PLAIN = "{{ message.role }}{{ message.content }}"
KNOWING = PLAIN + "{{ tools }}{{ message.tool_calls }}"


def test_a_template_that_knows_tools_gets_the_conversation_as_it_is() -> None:
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "now"}}]},
        {"role": "tool", "content": "12:00"},
    ]
    assert knows_tools(KNOWING) and not knows_tools(PLAIN) and not knows_tools(None)
    written = [messages[0], {**messages[1], "content": ""}, messages[2]]
    assert adapted(messages, [WEATHER], KNOWING) == written


def test_content_is_text_wherever_a_template_may_look_for_it() -> None:
    joining = ChatTemplate("{% for message in messages %}{{ '|' + message.content }}{% endfor %}{{ tools }}")
    for beside in ({"tool_calls": [{"function": {"name": "now"}}]}, {"reasoning_content": "Hm."}):
        for missing in ({}, {"content": None}):
            messages = [{"role": "user", "content": "?"}, {"role": "assistant", **beside, **missing}]
            assert joining.render(adapted(messages, [], KNOWING)) == "|?|None"
            with pytest.raises(RequestError):
                joining.render(messages)
    assert adapted([{"role": "assistant"}], [], KNOWING) == [
        {"role": "assistant"}
    ]  # refused, as it should be


def test_developer_messages_become_system_messages_without_such_a_role() -> None:
    messages = [{"role": "developer", "content": "Be brief."}]
    assert adapted(messages, [], KNOWING) == [{"role": "system", "content": "Be brief."}]
    assert adapted(messages, [], KNOWING + "developer") == messages


def test_tools_are_written_out_for_other_templates() -> None:
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [
            {"function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
            {"function": {"name": "now", "arguments": {}}},
        ]},
        {"role": "tool", "tool_call_id": "a", "content": "sun"},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "12:00"}]},
        {"role": "user", "content": "Thanks"},
    ]  # fmt: skip
    system, *rest = adapted(messages, [WEATHER], PLAIN)
    assert system["role"] == "system" and '"name": "weather"' in system["content"]
    assert rest == [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        },
        {
            "role": "user",
            "content": "<tool_response>\nsun\n</tool_response>\n<tool_response>\n12:00\n</tool_response>",
        },
        {"role": "user", "content": "Thanks"},
    ]


def test_instructions_join_the_system_message() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]
    first, *rest = adapted(messages, [WEATHER], PLAIN)
    assert first["content"].startswith("Be brief.\n\n") and rest == messages[1:]
    assert adapted(messages, [], PLAIN) == messages


def test_arguments_that_are_no_json_are_refused() -> None:
    endless: dict[str, Any] = {}
    endless["x"] = endless
    for arguments in ({"x": {1}}, endless):
        messages = [
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
        ]
        with pytest.raises(InvalidParams):
            adapted(messages, [], PLAIN)


@pytest.mark.parametrize(
    "messages",
    [None, 7, "hello", [], [7], [{}], [{"role": 7}], [{"role": "assistant", "tool_calls": 7}],
     [{"role": "assistant", "tool_calls": [7, {"function": 7}, {"function": {"name": {}}}]}], [{"role": "tool"}]],
)  # fmt: skip
def test_malformed_messages_do_not_raise(messages: Any) -> None:
    for template in (PLAIN, KNOWING, None):
        adapted(messages, [WEATHER], template)
