from __future__ import annotations

import enum
from datetime import datetime
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from headrace.errors import InvalidParams, RequestError, TokenizerError
from headrace.text.templates.chat import ChatTemplate
from headrace.text.templates.messages import MAX_MESSAGES, MAX_NESTING, MAX_TOOLS
from headrace.text.templates.wire import Reads, TemplateLimits
from tests import needs

transformers = needs.lazily("transformers")

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = """\
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou grind corn.<|im_end|>\\n' }}
{%- endif %}
{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

HEADERS = """\
{{- bos_token }}
{#- A comment
    of two lines #}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- set rest = messages[1:] if system else messages %}
<|start_header_id|>system<|end_header_id|>

Today Date: {{ strftime_now("%Y") }}
{% if system %}{{ system | upper }}{% endif %}<|eot_id|>
{%- for m in rest -%}
  {%- set content = '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ (m.content or '') -%}
  {{ content ~ '<|eot_id|>' if not loop.last or m.role != 'assistant' else content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""

INST = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
{% generation %}{{ message['content'] ~ eos_token }}{% endgeneration %}
{% endif %}
{% endfor %}
"""

TOOLS = """\
{%- macro describe(tool, depth=0) -%}
{%- for name, value in tool.function.parameters.properties.items() -%}
{{ '  ' * depth }}{{ name }}: {{ value.type | default('any') }}{{ ', ' if not loop.last }}
{%- endfor -%}
{%- endmacro -%}
{%- set ns = namespace(last_user=-1, calls=0) -%}
{%- for m in messages[::-1] -%}
  {%- if m.role == 'user' -%}
    {%- set ns.last_user = messages | length - loop.index -%}
    {%- break -%}
  {%- endif -%}
{%- endfor -%}
{%- if tools is not none and tools | length > 0 %}
<tools>
{% for tool in tools %}
{{ tool | tojson }} {{ describe(tool, 1) }}
{% endfor %}
</tools>{{ tools | map(attribute='function.name') | join(', ') }}
{%- endif %}
{%- for m in messages -%}
  {%- if m.role == 'system' %}{% continue %}{% endif %}
  {%- if m.tool_calls is defined and m.tool_calls -%}
    {%- for call in m.tool_calls %}
      {%- set ns.calls = ns.calls + 1 %}
<call {{ ns.calls }}>{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson(indent=2) }}</call>
    {%- endfor -%}
  {%- elif m.content is string -%}
    {%- set shown = m.content.split('</think>')[-1].lstrip('\\n') if loop.index0 < ns.last_user else m.content %}
<{{ m.role }}>{{ shown | replace('\\r', '') }}</{{ m.role }}>
  {%- elif m.content is iterable and m.content is not none -%}
    {%- for part in m.content | selectattr('type', 'equalto', 'text') %}
<part {{ loop.index }}/{{ m.content | length }}>{{ part['text'] }}{{ "%03d|%s" | format(loop.index, part.type) }}
    {%- endfor -%}
  {%- endif -%}
{%- endfor %}
{{ messages | groupby('role') | map('first') | list }} {{ "{:>4}".format(ns.last_user) }}
{{ [3, 1, 2] | sort | tojson }} {{ messages | rejectattr('role', 'equalto', 'user') | list | length }}
{{ 1 < ns.last_user <= 4 }} {{ 7 // 2 }} {{ 2 ** 5 }}
"""

NUMBERS = """\
{%- set ns = namespace(found=false) -%}
{%- for x in range(2, 20) if x is even and x % 3 != 0 %}{{ x }}{{ loop.cycle(' ', '/') }}{% else %}none{% endfor -%}
{{ dict(a=1, b=[1.5, none, true]) | tojson }} {{ {'ü': '<&>'} | tojson(ensure_ascii=true) }} {{ 'x' in 'xyz' }}
{{ '%s-%5.2f' % ('a', 2.345) }} {{ messages[-1]['content'][::-1][:3] }} {{ [1] + [2] * 3 }} {{ undefined_name }}
{{ messages | map(attribute='role') | unique | list }} {{ 'a,b'.split(',') | last | capitalize }} {{ 3.7 | round }}
{% filter upper %}caught {{ messages | length }}{% endfilter %}{% set b %}text{% endset %}{{ b | indent(4, true) }}
{% macro listed(xs) %}{% for x in xs %}{{ caller(x) }}{% endfor %}{% endmacro %}
{% call(x) listed([1, 2]) %}<{{ x }}>{% endcall %}
"""

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Hello <b>mill</b>!\n"},
    {"role": "assistant", "content": "<think>hm</think>\n\nHello."},
    {"role": "user", "content": "How fast does the wheel turn? 水 👩‍🌾"},
]
PAIRS = TALK[1:]
TOOL = {
    "type": "function",
    "function": {
        "name": "speed",
        "description": 'Speed of a wheel & its "axle"',
        "parameters": {"type": "object", "properties": {"unit": {"type": "string"}, "n": {}}},
    },
}
CALLS = [
    *TALK,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "speed", "arguments": {"unit": "rpm", "n": 2}}}
        ],
    },
    {"role": "tool", "content": '{"speed": 7}'},
    {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "now?"}]},
]


@cache
def chat(source: str) -> ChatTemplate:
    return ChatTemplate(source, TOKENS)


def theirs(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Backend(models.BPE()), chat_template=source, **TOKENS
    )
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize(
    ("source", "messages", "options"),
    [
        (CHATML, TALK, {}),
        (CHATML, PAIRS, {}),
        (HEADERS, TALK, {}),
        (HEADERS, PAIRS[:2], {}),
        (INST, PAIRS, {}),
        (TOOLS, TALK, {}),
        (TOOLS, CALLS, {"tools": [TOOL, TOOL]}),
        (NUMBERS, TALK, {}),
        (
            "{{ enable_thinking is defined and not enable_thinking }} {{ x }}",
            TALK,
            {"enable_thinking": False, "x": 1},
        ),
        ("{{ documents is none }}{{ tools is none }}{{ pad_token is defined }}\n\n", TALK, {}),
    ],
)
def test_renders_as_transformers_does(
    source: str, messages: list[dict[str, Any]], options: dict[str, Any], prompted: bool
) -> None:
    ours = chat(source).render(messages, add_generation_prompt=prompted, **options)
    assert ours == theirs(source, messages, add_generation_prompt=prompted, **options)


def test_raise_exception_is_a_request_error() -> None:
    with pytest.raises(RequestError, match=r"^Roles must alternate user/assistant"):
        chat(INST).render([*PAIRS, *PAIRS[:1]])


def test_the_clock_is_a_parameter() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26))
    assert template.render(TALK) == "26 Jul 2024"


def test_templates_see_copies() -> None:
    messages = [{"role": "user", "content": "a", "extra": {"k": [1]}}]
    assert chat("{{ messages }}").render(messages) == str(messages)
    assert messages == [{"role": "user", "content": "a", "extra": {"k": [1]}}]


# ---- Shapes of messages ----


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "must be a list"),
        ("hello", "must be a list"),
        ({"role": "user"}, "must be a list"),
        ([], "at least one"),
        (["hello"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\].role"),
        ([{"role": 3, "content": "x"}], r"messages\[0\].role"),
        ([*TALK, {"role": "user"}], r"messages\[4\].content is missing"),
        ([{"role": "user", "content": None}], "content is missing"),
        ([{"role": "user", "content": 3}], "content must be"),
        ([{"role": "user", "content": {"type": "text"}}], "content must be"),
        ([{"role": "user", "content": ["x"]}], r"content\[0\] must be an object"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "content.0. is an image, of type 'image_url'; of a model only its text part runs here",
        ),
        ([{"role": "assistant", "tool_calls": "x"}], "tool_calls"),
        ([{"role": "user", "content": "x", "object": object()}], "not JSON data"),
        ([{"role": "user", "content": "x", "keys": {1: 2}}], "not a string"),
        ([{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1), "at most"),
    ],
)
def test_wrong_shapes(messages: Any, message: str) -> None:
    with pytest.raises(InvalidParams, match=message):
        chat(CHATML).render(messages)


def test_deep_and_huge_messages_are_refused() -> None:
    deep: Any = "x"
    for _ in range(MAX_NESTING + 1):
        deep = [deep]
    with pytest.raises(InvalidParams, match="nested deeper"):
        chat(CHATML).render([{"role": "user", "content": "x", "deep": deep}])
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidParams, match="nested deeper"):
        chat(CHATML).render([{"role": "user", "content": "x", "loop": loop}])
    shared: Any = "x"
    for _ in range(40):
        shared = [shared, shared]
    for value in (shared, "x" * 3_000_000):
        with pytest.raises(InvalidParams, match="too large"):
            chat(CHATML).render([{"role": "user", "content": "x", "large": value}])


@pytest.mark.parametrize(
    ("tools", "message"), [("x", "list"), ([3], r"tools\[0\]"), ([{}] * (MAX_TOOLS + 1), "at most")]
)
def test_wrong_tools(tools: Any, message: str) -> None:
    with pytest.raises(InvalidParams, match=message):
        chat(CHATML).render(TALK, tools=tools)


def test_wrong_variables() -> None:
    with pytest.raises(InvalidParams, match="not JSON data"):
        chat(CHATML).render(TALK, helper=print)


def test_subclasses_become_plain() -> None:
    role = enum.StrEnum("Role", ["user"])
    number = enum.IntEnum("Number", ["one"])
    message = {
        "role": role.user,
        "content": "x",
        "n": number.one,
        "f": type("F", (float,), {})(0.5),
        "t": (1,),
    }
    assert chat("{{ messages }}").render([message]) == (
        "[{'role': 'user', 'content': 'x', 'n': 1, 'f': 0.5, 't': [1]}]"
    )


def test_fields_that_are_none_are_left_out() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f"}}],
        "name": None,
    }
    shown = ChatTemplate("{{ messages[0].keys() | list }}").render([message])
    assert shown == "['role', 'tool_calls']"


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_found_under_each_name(name: str) -> None:
    template = chat("{{ messages[0].reasoning_content }} {{ messages[0].thinking }}")
    assert template.render([{"role": "assistant", "content": None, name: "hm"}]) == "hm hm"


def test_roles_are_checked_by_the_template() -> None:
    assert "ghost" in chat(CHATML).render([{"role": "ghost", "content": "boo"}])


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        (CHATML, False),
        (TOOLS, True),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p.text }};{% endfor %}{% endfor %}", True),
        ("{% set content = messages[0].content %}{% for p in content %}{{ p.text }};{% endfor %}", True),
    ],
)  # fmt: skip
def test_parts_become_text_for_templates_that_know_strings_only(source: str, reads: bool) -> None:
    template = chat(source)
    assert (Reads.PARTS in template.reads) is reads
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    text = template.render([{"role": "user", "content": parts}])
    assert ("one\ntwo" in text) is not reads


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": [1]}', "{'a': [1]}"),
        ("", "{}"),
        ("not json", "not json"),
        ("[1]", "[1]"),
        ('{"a": ' + "[" * 90 + "]" * 90 + "}", '{"a": ' + "[" * 90 + "]" * 90 + "}"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_of_tool_calls_become_objects(arguments: str, shown: str) -> None:
    calls = [{"function": {"name": "f", "arguments": arguments}}]
    template = chat("{{ messages[0].tool_calls[0].function.arguments }}")
    assert template.render([{"role": "assistant", "content": None, "tool_calls": calls}]) == shown


# ---- Templates that cannot be compiled ----


@pytest.mark.parametrize(
    "source",
    [
        "{{",
        "{% for %}",
        "{% if x %}",
        "{{ 'a'|nosuchfilter }}",
        "{{ 'a' is nosuchtest }}",
        "{% include 'x' %}",
        "{% extends 'x' %}",
        "{% import 'x' as y %}",
        "{% from 'x' import y %}",
        "{% autoescape true %}{% endautoescape %}",
        "x" * (256 * 1024 + 1),
        "{{a}}" * 30_000,
        "{{" + "(" * 5000,
        "{{" + "a+" * 5000 + "a}}",
        "{% if a %}" * 5000,
        "{% if a %}" + "{% elif a %}" * 3000 + "{% endif %}",
        "{% for a in b %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "9" * 5000 + " }}",
        "\x00{{ '\ud800' }}{{",
    ],
    ids=lambda source: ascii(source[:24]),
)
def test_damaged_templates(source: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        ChatTemplate(source)
    assert len(str(caught.value)) < 500


def test_limits_are_parameters() -> None:
    with pytest.raises(TokenizerError, match="longer than 10 characters"):
        ChatTemplate("x" * 11, limits=TemplateLimits(source_chars=10))
    with pytest.raises(RequestError, match="prints too much"):
        ChatTemplate("x" * 501, limits=TemplateLimits(prompt_chars=500)).render(TALK[:1])
