"""Calls in the formats of the families: what they mean, whatever the pieces; what is not a call is content."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.text.tools.formats import TOOL_CALL_FORMATS
from headrace.text.tools.value_kinds import ANY_KIND, as_json, kinds_of
from tests.text.replies import Reply, read
from tests.work import growth

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "wet": {"type": "boolean"},
        "where": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "places": {"type": "array", "items": {"type": "string"}},
        "unit": {"$ref": "#/$defs/Unit"},
    },
    "$defs": {"Unit": {"enum": ["C", "F"]}},
}
TOOLS = {"weather": WEATHER, "add": None, "now": {"type": "object", "properties": {}}}

QWEN = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
SEED = (
    "<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n</function>\n</seed:tool_call>"
)
GLM = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"
V3 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    '{"city": "Oslo"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
V31 = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
OSLO = [["weather", '{"city": "Oslo"}']]
BOTH = [*OSLO, ["now", "{}"]]

CASES: list[tuple[str, str, str, list[list[str]]]] = [
    # ---- Text between tags ----
    ("qwen3_coder", f"I look.\n{QWEN}", "I look.", OSLO),
    ("qwen3_coder", f"{QWEN}\n<tool_call>\n<function=now>\n</function>\n</tool_call>\nok", "ok", BOTH),
    ("qwen3_coder", QWEN.replace("<tool_call>\n", "", 1), "", OSLO),  # models forget the first tag
    ("qwen3_coder", QWEN.replace("Oslo", "\nA < b\n<b>\"x\"\\</b>\n"), "",
     [["weather", '{"city": "\\nA < b\\n<b>\\"x\\"\\\\</b>\\n"}']]),
    (
        "qwen3_coder",
        "<tool_call><function=weather><parameter=days>\n3\n</parameter><parameter=wet>True</parameter>"
        "<parameter=where>null</parameter><parameter=places>[\"a\", \"b\"]</parameter><parameter=unit>\nC\n</parameter>"
        "<parameter=city>12</parameter><parameter=else>1.5</parameter></function></tool_call>",
        "", [["weather", '{"days": 3, "wet": true, "where": null, "places": ["a", "b"], "unit": "C", "city": "12", '
              '"else": 1.5}']],
    ),
    ("qwen3_coder", "<tool_call><function=weather><parameter=where>12</parameter></function>", "",
     [["weather", '{"where": "12"}']]),
    ("qwen3_coder", "<tool_call><function=add><parameter=a>not json</parameter></function>", "",
     [["add", '{"a": "not json"}']]),
    ("qwen3_coder", "<tool_call><function=made_up></function></tool_call>", "", [["made_up", "{}"]]),
    ("qwen3_coder", "<function=unknown><parameter=a>1</parameter></function>",
     "<function=unknown><parameter=a>1</parameter></function>", []),
    ("qwen3_coder", "<tool_call><function=now>what?</function>", "<tool_call><function=now>what?</function>", []),
    ("qwen3_coder", "<tool_call>text</tool_call>", "<tool_call>text</tool_call>", []),
    ("qwen3_coder", "<tool_call><function=a b>", "<tool_call><function=a b>", []),
    ("qwen3_coder", "<tool_call><function=weather><parameter=city>Os", "", [["weather", '{"city": "Os']]),
    ("qwen3_coder", "<tool_call><function=weather><parameter=city>Os\n</para", "",
     [["weather", '{"city": "Os\\n</para']]),
    ("qwen3_coder", "<tool_call><function=weather><parameter=days>3", "", [["weather", '{"days": 3']]),
    ("qwen3_coder", "<tool_call><function=weather><parameter=da", "", [["weather", '{"da']]),
    ("qwen3_coder", "<tool_call><function=weather><parameter=days>3</parameter> hm", "hm",
     [["weather", '{"days": 3}']]),
    ("qwen3_coder", f"<tool_call><function=add><parameter={'k' * 1100}>1</parameter>",
     f"<parameter={'k' * 1100}>1</parameter>", [["add", "{}"]]),
    ("qwen3_coder", "<tool_call><function=" + "n" * 300, "<tool_call><function=" + "n" * 300, []),
    ("seed_oss", f"Hm.{SEED}", "Hm.", OSLO),
    ("seed_oss", "<seed:tool_call>{}</seed:tool_call>", "<seed:tool_call>{}</seed:tool_call>", []),
    ("glm45", f"\n{GLM}\n<tool_call>now</tool_call>", "", BOTH),
    ("glm45", GLM.replace("\n", ""), "", OSLO),
    ("glm45", "<tool_call>\nweather\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call> ok", "ok",
     [["weather", '{"days": 2}']]),
    ("glm45", GLM.replace("Oslo", "\n Oslo "), "", [["weather", '{"city": "\\n Oslo "}']]),
    ("glm45", "<tool_call>two words</tool_call>", "<tool_call>two words</tool_call>", []),
    ("glm45", '<tool_call>{"name": "now"}</tool_call>', '<tool_call>{"name": "now"}</tool_call>', []),
    ("glm45", "<tool_call>weather\n<arg_key>ci", "", [["weather", '{"ci']]),
    ("glm45", "<tool_call>weather\n<arg_k", "<tool_call>weather\n<arg_k", []),
    # ---- JSON after a name ----
    ("deepseek_v3", f"I look.{V3}", "I look.", BOTH),
    ("deepseek_v31", f"I look.{V31}\n\nDone", "I look.Done", BOTH),
    ("deepseek_v3", V31, "", BOTH),
    ("deepseek_v31", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}", "", [["now", "{}"]]),
    ("deepseek_v31", '<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": "x', "", [["add", '{"a": "x']]),
    ("deepseek_v31", "<｜tool▁calls▁begin｜> nothing", "<｜tool▁calls▁begin｜> nothing", []),
    ("deepseek_v31", "<｜tool▁call▁begin｜>add<｜tool▁sep｜>[1]", "<｜tool▁call▁begin｜>add<｜tool▁sep｜>[1]", []),
    ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n[]",
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n[]", []),
    ("deepseek_v3", "<｜tool▁call▁be", "<｜tool▁call▁be", []),
    # ---- JSON after a mark ----
    ("granite", '<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "now"}]', "", BOTH),
    ("granite", '<tool_call>[{"arguments": {"city": "Oslo"}, "name": "weather"}]</tool_call>', "", OSLO),
    ("granite", '<|tool_call|>{"name": "now", "arguments": {}}', "", [["now", "{}"]]),
    ("granite", "<|tool_call|>[]", "<|tool_call|>[]", []),
    ("phi4_mini_json", '<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}]<|/tool_call|>', "", OSLO),
    ("phi4_mini_json", 'functools[{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "now"}] ok', "ok", BOTH),
    ("phi4_mini_json", "import functools\nfunctools[0]", "import functools\nfunctools[0]", []),
    ("internlm", 'Hm.<|action_start|><|plugin|>\n{"name": "weather", "parameters": {"city": "Oslo"}}<|action_end|>',
     "Hm.", OSLO),
    (
        "cohere_command3",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>', "", BOTH,
    ),
    ("cohere_command3", '<|START_ACTION|>[{"name": "now"}]', '<|START_ACTION|>[{"name": "now"}]', []),
    ("llama4_json", '<|python_start|>{"name": "weather", "parameters": {"city": "Oslo"}}<|python_end|>', "", OSLO),
    ("llama4_json", '{"name": "now", "parameters": {}}', "", [["now", "{}"]]),
    # ---- Python ----
    ("llama4_pythonic", '<|python_start|>[weather(city="Oslo"), now()]<|python_end|>', "", BOTH),
    ("llama4_pythonic", '[weather(city="Oslo")]', "", OSLO),
    ("llama4_pythonic", "I look. <|python_start|>[now()]<|python_end|>", "I look.", [["now", "{}"]]),
    ("llama4_pythonic", "[unknown()]", "[unknown()]", []),
    ("lfm2", "<|tool_call_start|>[weather(city='Oslo'), now()]<|tool_call_end|>\nI look.", "I look.", BOTH),
    ("lfm2", "[now()]", "[now()]", []),
    ("lfm2", "<|tool_call_start|>[now(", "<|tool_call_start|>[now(", []),
    ("lfm2", "<|tool_call_start|>now()", "<|tool_call_start|>now()", []),
    ("olmo3", '<function_calls>\nweather(city="Oslo")\nnow()\n</function_calls>', "", BOTH),
    ("olmo3", "<function_calls>add(a=true, b=null)</function_calls>ok", "ok", [["add", '{"a": true, "b": null}']]),
    ("olmo3", "<function_calls>one two</function_calls>", "<function_calls>one two</function_calls>", []),
    # ---- Gemma ----
    ("functiongemma", "<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>", "", OSLO),
    (
        "gemma4",
        'Hm. <|tool_call>call:add{a:<|"|>x "y" {,\n<|"|>,b:-1.5,c:[1,true,<|"|>t<|"|>],d:{e:null,f:{}},g:bare word}'
        "<tool_call|>", "Hm.",
        [["add", '{"a": "x \\"y\\" {,\\n", "b": -1.5, "c": [1, true, "t"], "d": {"e": null, "f": {}}, '
          '"g": "bare word"}']],
    ),
    ("gemma4", '<|tool_call>call:weather{"city": "Os\\"lo\\n"}<tool_call|><|tool_call>call:now{}<tool_call|>', "",
     [["weather", '{"city": "Os\\"lo\\n"}'], ["now", "{}"]]),
    ("gemma4", '<|tool_call>call:weather{city:<|"|>Os<|"', "", [["weather", '{"city": "Os']]),
    ("gemma4", "<|tool_call>call:add{a:1<tool_call|> ok", "ok", [["add", '{"a": 1']]),
    ("gemma4", "<|tool_call>call:add{a:12", "", [["add", '{"a": 12']]),
    ("gemma4", "<|tool_call>call:add[1]", "<|tool_call>call:add[1]", []),
    ("gemma4", "<|tool_call>add{}", "<|tool_call>add{}", []),
    ("gemma4", "<|tool_call>call:add{a:" + "[" * 70, "[" * 7, [["add", '{"a": ' + "[" * 63]]),
]  # fmt: skip

IDS = [f"{name}-{number}" for number, (name, *_) in enumerate(CASES)]


def parse(name: str, pieces: list[str], hidden: tuple[str, ...] = ()) -> Reply:
    return read(TOOL_CALL_FORMATS[name].parser(TOOLS, hidden), pieces)


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES, ids=IDS)
def test_what_a_reply_means_in_any_pieces(name: str, text: str, content: str, calls: list[list[str]]) -> None:
    whole = parse(name, [text])
    assert (whole.content, whole.calls) == (content, calls)
    assert parse(name, list(text)) == whole
    if len(text) < 500:
        for at in range(len(text)):
            assert parse(name, [text[:at], text[at:]]) == whole, at


def test_every_format_has_cases() -> None:
    assert {name for name, *_ in CASES} >= TOOL_CALL_FORMATS.keys() - {
        "openai", "hermes", "mistral", "llama3_json", "pythonic",
    }  # fmt: skip


FRAGMENTS = [
    "<function=weather>", "<function=", "<parameter=city>", "<parameter=", ">", "call:", "call:now{", "{", "}", "city",
    ":", "[", "]", ",", '"', "\\", "weather", "now()", "now", "add(a='", "'", ")", "\n", " ", "```json\n", "```", "{}",
    "12", "é", "<", '{"name": "now"}', '{"tool_name": "now", "parameters": {}}', "functools[", '{"city": "x"}',
    "functions.now", "to=", "final", "analysis", "commentary", "json", "assistant",
]  # fmt: skip
MARKED = {name: [*FRAGMENTS, *(4 * one.markers)] for name, one in TOOL_CALL_FORMATS.items()}


@settings(max_examples=400)
@given(st.data())
def test_pieces_do_not_matter_for_hostile_text(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(TOOL_CALL_FORMATS)))
    text = data.draw(st.lists(st.sampled_from(MARKED[name]), max_size=20).map("".join))
    cuts = data.draw(st.lists(st.integers(0, 200), max_size=10))
    hidden = TOOL_CALL_FORMATS[name].markers if data.draw(st.booleans()) else ()
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    whole = parse(name, [text], hidden)
    assert parse(name, [text[a:b] for a, b in pairwise(edges)], hidden) == whole
    assert parse(name, list(text), hidden) == whole


def test_nothing_is_lost_of_hostile_text() -> None:
    """Words between any marks are in the content or in a call, except in the headers of channels."""
    for name in sorted(TOOL_CALL_FORMATS.keys() - {"openai"}):
        rng = random.Random(name)
        for _ in range(40):
            parts = [rng.choice(MARKED[name]) if rng.random() < 0.8 else f"word{n}x" for n in range(14)]
            reply = parse(name, ["".join(parts)])
            shown = reply.content + " ".join(" ".join(call) for call in reply.calls)
            assert all(part in shown for part in parts if part.startswith("word")), (parts, reply)


HOSTILE: dict[str, tuple[str, Callable[[int], str]]] = {
    "tags": ("qwen3_coder", lambda many: "<tool_call>" * many),
    "functions": ("qwen3_coder", lambda many: "<function=weather>" * many),
    "values": ("qwen3_coder", lambda many: "<function=weather><parameter=city>" + "\n</param" * many),
    "numbers": ("qwen3_coder", lambda many: "<function=weather><parameter=days>" + "1 " * many),
    "parameters": (
        "qwen3_coder",
        lambda many: "<function=add>" + "<parameter=a>1</parameter>" * (many // 10),
    ),
    "keys": ("glm45", lambda many: "<tool_call>add" + "<arg_key>" * many),
    "begins": ("deepseek_v3", lambda many: "<｜tool▁calls▁begin｜>" * many),
    "separators": ("deepseek_v3", lambda many: "<｜tool▁call▁begin｜>f<｜tool▁sep｜>" * many),
    "fences": ("deepseek_v31", lambda many: "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}" + "```" * many),
    "lists": ("granite", lambda many: "<|tool_call|>[" * many),
    "two marks": ("granite", lambda many: '<|tool_call|>[{"name": "now"}] x ' * (many // 10)),
    "objects": ("gemma4", lambda many: "<|tool_call>call:now{a:" + "{a:" * many),
    "quotes": ("gemma4", lambda many: '<|tool_call>call:now{a:<|"|>' + '<|"' * many),
    "bare": ("gemma4", lambda many: "<|tool_call>call:now{a:" + "x" * many),
    "lines": ("olmo3", lambda many: "<function_calls>" + "now()\n" * (many // 5)),
    "headers": ("openai", lambda many: "<|channel|>" * many),
    "messages": ("openai", lambda many: "<|channel|>analysis<|message|>x<|end|>" * (many // 5)),
    "ends": ("openai", lambda many: "<|message|>" + "<|en" * many),
}


def read_twice(name: str, text: str) -> None:
    whole = parse(name, [text])
    assert parse(name, [text[at : at + 19] for at in range(0, len(text), 19)]) == whole


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.long if at % 3 else ()) for at, what in enumerate(HOSTILE)]
)
def test_the_work_for_hostile_text_is_linear(what: str) -> None:
    name, text = HOSTILE[what]
    assert growth(lambda many: read_twice(name, text(many))) < 5


@pytest.mark.parametrize("name", ["qwen3_coder", "seed_oss", "glm45"])
def test_texts_are_streamed_as_they_arrive(name: str) -> None:
    text = {"qwen3_coder": QWEN, "seed_oss": SEED, "glm45": GLM}[name].replace("Oslo", "a long text")
    parser = TOOL_CALL_FORMATS[name].parser(TOOLS, ())
    sizes = [len(parser.push(char)) for char in text]
    assert sizes.count(1) > len("a long text") - 2
    assert read(TOOL_CALL_FORMATS[name].parser(TOOLS, ()), text).calls == [
        ["weather", '{"city": "a long text"}']
    ]


def test_what_a_schema_says_of_an_argument() -> None:
    assert kinds_of(WEATHER, "city") == {"string"} == kinds_of(WEATHER, "unit")
    assert kinds_of(WEATHER, "where") == {"string", "null"}
    assert kinds_of(WEATHER, "other") == kinds_of(None, "city") == ANY_KIND
    endless = {"properties": {"a": {"$ref": "#/properties/a"}}}
    assert kinds_of(endless, "a") == ANY_KIND
    for schema in (
        {"properties": 5},
        {"properties": {"a": 5}},
        {"properties": {"a": {"type": 5, "anyOf": 3}}},
    ):
        assert kinds_of(schema, "a") == ANY_KIND
    assert as_json("NaN", ANY_KIND) == '"NaN"' and as_json("[" * 100_000, ANY_KIND).startswith('"[[')
    assert json.loads(as_json("5", frozenset({"number", "string"}))) == 5
