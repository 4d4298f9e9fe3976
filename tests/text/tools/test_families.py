"""Each family's template and its parsers: what the template writes of a message is read as that message."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.text.templates.conversation import adapted
from headrace.text.templates.messages import PlainCopier, checked_messages
from headrace.text.templates.messages import checked_tools as described_tools
from headrace.text.templates.sandbox import compiled, new_environment
from headrace.text.templates.shapes import tool_variables
from headrace.text.tools.formats import TOOL_CALL_FORMATS, detect_tool_calls
from headrace.text.tools.harmony import HarmonyParser
from headrace.text.tools.reader import ReplyReader
from headrace.text.tools.reasoning import REASONING_FORMATS, ReasoningParser, Stage, detect_reasoning
from headrace.text.tools.request import checked_tools
from tests.text.families import FAMILIES, Family
from tests.text.replies import Reply, read

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "wet": {"type": "boolean"}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Rain?", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS = {"city": 'Oslo, "the" ü\n<b>', "days": 3, "wet": True}
EVERY = pytest.mark.parametrize("one", FAMILIES, ids=lambda one: one.name)


def call(name: str, identity: str = "call_1", **arguments: Any) -> dict[str, Any]:
    written = json.dumps(arguments, ensure_ascii=False)  # text, as in OpenAI's API
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": written}}


def rendered(
    one: Family, messages: list[Any], tools: Any = None, begins: bool = True, **variables: Any
) -> str:
    """As the server renders it, but in this process."""
    template, reads = compiled(new_environment(), one.template)
    checked = checked_tools(tools)
    described = [tool.described for tool in checked] or None
    copier = PlainCopier(2**20)
    names = {
        "messages": checked_messages(adapted(messages, checked, one.template), copier, reads),
        "tools": described_tools(described, copier, reads), "add_generation_prompt": begins,
        **tool_variables(one.template, described), **variables,
    }  # fmt: skip
    return template.render(names)


def reader(one: Family, prompt: str) -> ReplyReader:
    calls = TOOL_CALL_FORMATS[one.calls]
    how = None if one.reasoning is None else REASONING_FORMATS[one.reasoning]
    tools = {"weather": PARAMETERS, "now": None}
    stage = Stage.PAST if how is None else how.stage(prompt)
    if calls.channels:
        return ReplyReader(HarmonyParser(tools, reasons=how is not None))
    thoughts = None if how is None or stage is Stage.PAST else ReasoningParser(how, stage is Stage.INSIDE)
    return ReplyReader(thoughts, calls.parser(tools, ()))


@EVERY
def test_the_formats_are_found_in_the_template(one: Family) -> None:
    calls, reasoning = detect_tool_calls(one.template), detect_reasoning(one.template)
    assert (calls and calls.name, reasoning and reasoning.name) == (one.calls, one.reasoning)


MESSAGES: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("It rains.", "", []),
    ("It rains.", "Hm,\nwell.", []),
    ("", "Hm.", [call("weather", **ARGUMENTS)]),
    ("I look.", "", [call("weather", **ARGUMENTS)]),
    ("", "", [call("weather", **ARGUMENTS), call("now", "call_2")]),
]
"""Content, reasoning, calls."""


def messages_of(one: Family) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Those that the family can write."""
    return [
        ("" if calls and one.calls_alone else content, reasoning, calls)
        for content, reasoning, calls in MESSAGES
        if not (reasoning and one.reasoning is None)
        and not (len(calls) > 1 and one.calls in ("openai", "llama3_json"))
    ]


def written(one: Family, content: str, reasoning: str, calls: list[dict[str, Any]]) -> str:
    """The reply that the template writes of an assistant's message."""
    message: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": calls or None}
    if reasoning:
        message["reasoning_content"] = reasoning
    text = rendered(one, [{"role": "user", "content": "Rain?"}, message], TOOLS, begins=False)
    before = "Rain?<|end|><|start|>assistant" if one.calls == "openai" else one.assistant
    reply = text[text.rindex(before) + len(before) :]
    if one.end:
        reply = reply[: reply.rindex(one.end)]
    # R1's template shows no reasoning; a reply begins with it, without a mark.
    return f"{reasoning}</think>{reply}" if one.reasoning == "deepseek_r1" else reply


@EVERY
def test_a_message_is_read_as_it_was_written(one: Family) -> None:
    prompt = rendered(one, [{"role": "user", "content": "Rain?"}], TOOLS, **one.thinks)
    for content, reasoning, calls in messages_of(one):
        reply = written(one, content, reasoning, calls)
        if one.opens and not reasoning:
            continue
        said = read(reader(one, prompt), list(reply))
        assert said.content.strip() == content and said.reasoning.strip() == reasoning, (reply, said)
        assert [name for name, _ in said.calls] == [each["function"]["name"] for each in calls], (reply, said)
        for (_, arguments), each in zip(said.calls, calls, strict=True):
            assert json.loads(arguments) == json.loads(each["function"]["arguments"])


@EVERY
def test_the_tools_are_in_the_prompt(one: Family) -> None:
    user = {"role": "user", "content": "Rain?"}
    assert "weather" in rendered(one, [user], TOOLS) and "weather" not in rendered(one, [user])


@EVERY
def test_variables_switch_the_reasoning(one: Family) -> None:
    if one.reasoning is None:
        return
    how = REASONING_FORMATS[one.reasoning]
    user = {"role": "user", "content": "Rain?"}
    if one.opens:
        assert how.stage(rendered(one, [user], **one.thinks)) is Stage.INSIDE
    if one.closes:
        assert how.stage(rendered(one, [user], **one.closes)) is Stage.PAST


def by_name(name: str) -> Family:
    return next(one for one in FAMILIES if one.name == name)


RESULT = {"role": "tool", "tool_call_id": "call_1", "content": '{"rain": 7}'}
ASKED: list[Any] = [
    {"role": "user", "content": "Rain?"},
    {"role": "assistant", "content": None, "tool_calls": [call("weather", city="Oslo")]},
]


def test_results_are_part_of_the_message_of_their_calls_for_gemma_4() -> None:
    text = rendered(by_name("gemma4"), [*ASKED, RESULT, {**RESULT, "content": "rain"}], TOOLS)
    assert (
        'city:<|"|>Oslo<|"|>}<tool_call|><|tool_response>response:weather{"rain": 7}<tool_response|>' in text
    )
    assert 'response:weather"rain"' in text and "tool_call_id" not in text


def test_phi_has_tools_and_calls_as_text() -> None:
    one = by_name("phi4-mini")
    text = rendered(one, [*ASKED, RESULT], TOOLS)
    assert (
        text.startswith('<|system|><|tool|>[{"name": "weather"') and "<|/tool|><|end|><|user|>Rain?" in text
    )
    assert (
        '<|assistant|><|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}]<|/tool_call|><|end|>'
        in text
    )
    brief = rendered(one, [{"role": "system", "content": "Be brief."}, *ASKED], TOOLS)
    assert brief.startswith("<|system|>Be brief.<|tool|>[")
    assert "<|tool|>" not in rendered(one, ASKED[:1])


def test_harmony_has_a_call_a_message_and_one_text_before_it() -> None:
    one = by_name("gpt-oss")
    calls = [call("weather", city="Oslo"), call("now", "call_2")]
    message = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": calls}
    text = rendered(
        one, [ASKED[0], message, RESULT, {**RESULT, "tool_call_id": "call_2", "content": "noon"}], TOOLS
    )
    order = [
        "analysis<|message|>Hm.\nI look.<|end|>",
        "functions.weather",
        '{"rain": 7}',
        "functions.now",
        "noon",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "Reasoning: high" in rendered(one, [ASKED[0]], TOOLS, reasoning_effort="high")


def test_arguments_are_text_where_a_template_joins_them_to_text() -> None:
    for name in ("deepseek-r1", "deepseek-v3.1"):
        assert '{"city": "Oslo"}' in rendered(by_name(name), [*ASKED, RESULT], TOOLS)


@EVERY
def test_calls_are_text_for_templates_that_write_content_only(one: Family) -> None:
    if one.name == "phi4-mini":
        return  # which reads tools from a message
    content_only = replace(one, template=_CONTENT + f"{{{{ tools }}}}{{# {' '.join(_shown(one))} #}}")
    text = rendered(content_only, [*ASKED, RESULT], TOOLS)
    assert text.startswith("[user]Rain?[assistant]") and text.split("[tool]")[1].startswith('{"rain": 7}')
    written = text.split("[assistant]")[1].split("[tool]")[0]
    parser = TOOL_CALL_FORMATS[one.calls].parser({"weather": PARAMETERS, "now": None}, ())
    assert read(ReplyReader(None, parser), written).calls == [["weather", '{"city": "Oslo"}']]


_CONTENT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def _shown(one: Family) -> list[str]:
    sign = TOOL_CALL_FORMATS[one.calls].signs[-1]
    return [sign] if isinstance(sign, str) else list(sign)


def test_tools_are_described_in_the_format_of_calls_that_a_template_shows() -> None:
    for name in ("deepseek-r1", "deepseek-v3.1"):
        one = by_name(name)
        assert "{%- if tools %}" in one.template
        deaf = replace(one, template=one.template.replace("tools", "toolz"))
        text = rendered(deaf, [*ASKED, RESULT], TOOLS)
        system, rest = text.split("<｜user｜>")
        assert '"name": "weather"' in system and "<tool_call>" not in text
        shown = "function<｜tool▁sep｜>NAME\n```json\n{A" if name == "deepseek-r1" else "NAME<｜tool▁sep｜>{A"
        assert f"answer: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{shown}" in system
        assert (
            "weather" in rest and rest.count("<｜tool▁calls▁begin｜>") == 1 and "<tool_response>" not in rest
        )
        assert (
            text.split("<｜Assistant｜>")[1]
            == rendered(one, [*ASKED, RESULT], TOOLS).split("<｜Assistant｜>")[1]
        )


@pytest.mark.parametrize(
    "refusal",
    [
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}",
        "{% if messages[0].role != 'user' %}{{ raise_exception('user and assistant alternate') }}{% endif %}",
    ],
)
def test_tools_are_described_by_the_user_where_there_is_no_system_message(refusal: str) -> None:
    one = replace(by_name("gemma4"), template=refusal + _CONTENT)
    text = rendered(one, [*ASKED, RESULT], TOOLS)
    assert text.startswith("[user]You may call these tools:") and "\n\nRain?[assistant]" in text
    assert text.endswith('[user]<tool_response>\n{"rain": 7}\n</tool_response>')


def test_a_call_a_message_for_templates_that_refuse_several() -> None:
    one = by_name("llama3.1")
    refusal = "{{ raise_exception('single tool-calls only') if m.tool_calls | length > 1 }}"
    one = replace(
        one, template=one.template.replace("{% if m.tool_calls %}", "{% if m.tool_calls %}" + refusal)
    )
    calls = [call("weather", city="Oslo"), call("now", "call_2")]
    noon = {**RESULT, "tool_call_id": "call_2", "content": "noon"}
    asked = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": calls}
    text = rendered(one, [ASKED[0], asked, noon, RESULT], TOOLS)
    places = [
        text.index(part) for part in ("I look.", "Oslo", '{"rain": 7}', '"now", "parameters": {}', "noon")
    ]
    assert places == sorted(places)


def test_a_tool_without_a_description() -> None:
    one = by_name("gpt-oss")
    joining = replace(
        one, template="{% for t in tools %}{{ '// ' + t.function.description + '|' }}{% endfor %}"
    )
    asking = replace(one, template="{% for t in tools %}{{ t.function.description is defined }}|{% endfor %}")
    for template, text in ((joining, "// Rain?|// |"), (asking, "True|False|")):
        assert rendered(template, ASKED[:1], TOOLS) == text


def test_results_stay_messages_where_a_template_knows_their_role() -> None:
    one = by_name("gemma4")
    for test in ("m.role != 'tool'", "'tool' != m.role", "m['role'] in ('system', 'tool')"):
        knowing = replace(one, template=one.template + f"{{% set t = [] if {test} else [] %}}")
        assert adapted([*ASKED, RESULT], checked_tools(TOOLS), knowing.template)[-1] == RESULT


MALFORMED: list[list[Any]] = [
    [5], ["x", {"tool_calls": [3]}], [{"role": "tool"}], [{"role": "assistant", "tool_calls": 5}],
    [{"role": "assistant", "tool_calls": [{"function": 5}]}, {"role": "tool", "content": 5}],
]  # fmt: skip


def test_malformed_messages_keep_their_shape() -> None:
    for template in (
        _CONTENT,
        *(by_name(name).template for name in ("gemma4", "phi4-mini", "gpt-oss", "lfm2.5")),
    ):
        for messages in MALFORMED:
            adapted(messages, checked_tools(TOOLS), template)


HARMONY: list[tuple[str, Reply]] = [
    ("<|channel|>final<|message|>Yes.", Reply("Yes.")),
    (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        Reply("Yes.", "Hm."),
    ),
    (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
        Reply("I look.", "a\nb", [["weather", '{"city": "Oslo"}']]),
    ),
    (' to=functions.now<|channel|>commentary json<|message|>{}<|call|>', Reply("", "", [["now", "{}"]])),
    ("<|channel|>commentary to=functions.now<|message|><|call|>", Reply("", "", [["now", "{}"]])),
    ('<|channel|>commentary to=functions.now<|message|>{"a": "x', Reply("", "", [["now", '{"a": "x']])),
    ("<|channel|>commentary to=functions.now<|message|>not json<|call|>", Reply("not json")),
    ("<|channel|>analysis to=python<|message|>1 + 1<|call|>", Reply("", "1 + 1")),
    ("Just text, a < b <|", Reply("Just text, a < b <|")),
    ("  \n", Reply("  \n")),
    ("<|channel|>analysis<|message|>never ended", Reply("", "never ended")),
    ("<|channel|>final<|message|>Yes.<|end|>more", Reply("Yes.\nmore")),
    ("<|channel|>analysis", Reply()),
    ("<|start|>assistant<|message|>a<|end|>", Reply("a")),
    ("<|start|>no header {<|message|>a", Reply("<|start|>no header {a")),
    ("<|channel|>final<|message|>Yes.<|end|><|start|>assist", Reply("Yes.")),
    ("<|channel|>" + "x y " * 200, Reply("<|channel|>" + "x y " * 200)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), HARMONY, ids=range(len(HARMONY)))
def test_messages_in_channels(text: str, expected: Reply) -> None:
    assert read(HarmonyParser({"now": None}), [text]) == expected
    for at in range(len(text)):
        assert read(HarmonyParser({"now": None}), [text[:at], text[at:]]) == expected, at
    assert read(HarmonyParser({"now": None}), list(text)) == expected


def test_channels_without_tools_and_without_reasoning() -> None:
    text = HARMONY[2][0]
    assert read(HarmonyParser(), text) == Reply('I look.\n{"city": "Oslo"}', "a\nb")
    assert read(HarmonyParser(reasons=False), text).content == 'a\nb\nI look.\n{"city": "Oslo"}'
    called = Reply("", "a\nb", [["weather", '{"city": "Oslo"}']])
    assert read(HarmonyParser({}, shows=False), text) == called
    final = "<|channel|>final<|message|>x"
    assert read(HarmonyParser(inside=True), f"Hm.<|end|><|start|>assistant{final}") == Reply("x", "Hm.")
    assert read(HarmonyParser(answering=True), " and on.<|return|>") == Reply(" and on.")
