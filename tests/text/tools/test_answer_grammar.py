"""Grammars of answers with a form: what they accept after reasoning and with tools, and how it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.core.grammar import CHOICE, JSON_OBJECT, JSON_SCHEMA, LARK, REGEX, Grammar
from headrace.errors import InvalidParams
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.formats import TOOL_CALL_FORMATS
from headrace.text.tools.grammar.fixed import answer_grammar
from headrace.text.tools.grammar.words import ToolSchema
from headrace.text.tools.pieces import Content
from headrace.text.tools.reader import LeadingCalls, ReplyReader
from headrace.text.tools.reasoning import REASONING_FORMATS, ReasoningParser
from tests import needs
from tests.places import TALE
from tests.text.replies import read

llguidance = needs.package("llguidance")

THINK = REASONING_FORMATS["qwen3"]
PET = Grammar(
    JSON_SCHEMA,
    {"type": "object", "properties": {"animal": {"enum": ["fox", "cat"]}}, "required": ["animal"],
     "additionalProperties": False},  # type: ignore[arg-type]
)  # fmt: skip
TOOLS = [
    ToolSchema(
        "paint",
        {
            "type": "object",
            "properties": {"colour": {"$ref": "#/$defs/Colour"}, "under": {"$ref": "#"}},
            "required": ["colour"],
            "additionalProperties": False,
            "$defs": {"Colour": {"enum": ["red", "blue"]}},
        },
    ),
    ToolSchema("ring", {"type": "object", "properties": {}, "additionalProperties": False}),
]
CALLS = {
    "hermes": (
        '<tool_call>\n{"name": "paint", "arguments": {"colour": "red", "under": {"colour": "blue"}}}\n</tool_call>',
        '<tool_call>\n{"name": "ring", "arguments": {}}\n</tool_call>',
        "\n",
    ),
    "llama3_json": (
        '{"name": "paint", "parameters": {"colour": "red", "under": {"colour": "blue"}}}',
        '{"name": "ring", "parameters": {}}',
        "; ",
    ),
    "mistral": (
        '[TOOL_CALLS][{"name": "paint", "arguments": {"colour": "red"}}]',
        '[TOOL_CALLS][{"name": "ring", "arguments": {}}]',
        "",
    ),
    "pythonic": ('[paint(colour="red")]', "[ring()]", ""),
}
PLAIN = [ToolSchema("paint", {"type": "object", "properties": {"colour": {"enum": ["red"]}},
                              "required": ["colour"]}), TOOLS[1]]  # fmt: skip
"""For calls as Python writes them, which know no references at the root."""


@pytest.fixture(scope="module")
def backend() -> Any:
    tokenizer = Tokenizer.from_folder(TALE)
    text = (TALE / "tokenizer.json").read_text()
    return llguidance.LLTokenizer(text, n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.eos_ids))


def accepts(backend: Any, grammar: Grammar, text: str) -> bool:
    assert grammar.kind == LARK
    matcher = llguidance.LLMatcher(backend, grammar.source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = backend.tokenize_str(text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


FORMS = {
    "json": (PET, ['{"animal": "fox"}'], ['{"animal": "dog"}', "", "{}", '{"animal": "fox"} x']),
    "object": (Grammar(JSON_OBJECT), ["{}", '{"a": [1]}'], ["[]", "x", ""]),
    "regex": (Grammar(REGEX, "^a/b{1,2}\\/$"), ["a/b/", "a/bb/"], ["a/", "a/b", "^a/b/$"]),
    "newline": (Grammar(REGEX, "a\nb"), ["a\nb"], ["ab", "a\\nb"]),
    "choice": (Grammar(CHOICE, ['"yes"', "no"]), ['"yes"', "no"], ["yes", "", "nono"]),  # type: ignore[arg-type]
    "lark": (
        Grammar(LARK, 'start: answer " " thought\nanswer: "a" | "b"\nthought: "c"\n%ignore /z/'),
        ["a c", "b zc"],
        ["a", "c", "a cc"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("inside", [True, False])
def test_a_form_follows_reasoning(backend: Any, name: str, inside: bool) -> None:
    form, good, bad = FORMS[name]
    grammar = answer_grammar(form, reasoning=THINK, inside=inside)
    opening = "" if inside else "<think>"
    for text in good:
        for gap in ("", "\n", "\n\n"):
            assert accepts(backend, grammar, f"{opening}\nA < b { {1} }.</think>{gap}{text}")
        assert not accepts(backend, grammar, f"{opening}hm</think>\n\n\n{text}")
        assert not accepts(backend, grammar, f"{opening}hm {text}")
        assert accepts(backend, grammar, text) is not inside
    for text in bad:
        assert not accepts(backend, grammar, f"{opening}hm</think>{text}")


@pytest.mark.parametrize("call_format", CALLS)
@pytest.mark.parametrize("reasons", [True, False])
def test_beside_tools_there_are_calls_or_the_form(backend: Any, call_format: str, reasons: bool) -> None:
    tools = PLAIN if call_format == "pythonic" else TOOLS
    reasoning = THINK if reasons else None
    many = answer_grammar(PET, tools, call_format, reasoning=reasoning)
    one = answer_grammar(PET, tools, call_format, reasoning=reasoning, parallel=False)
    first, second, between = CALLS[call_format]
    front = "<think>Hm.</think>\n" if reasons else ""
    for text in (first, second, '{"animal": "cat"}'):
        assert accepts(backend, one, front + text) and accepts(backend, many, front + text)
    if between:
        assert accepts(backend, many, f"{front}{first}{between}{second}")
        assert not accepts(backend, one, f"{front}{first}{between}{second}")
    for text in (
        "", first.replace("red", "dead"), first.replace("paint", "print"), f"Look: {first}", '{"animal": "dog"}',
        first + '{"animal": "cat"}', '{"animal": "cat"}' + second,
    ):  # fmt: skip
        assert not accepts(backend, many, front + text), text


def test_a_form_alone_is_itself() -> None:
    assert answer_grammar(PET) is PET
    with pytest.raises(InvalidParams):
        answer_grammar(None)


# ---- Reading ----


def reader(call_format: str, reasons: bool = False) -> ReplyReader:
    calls = TOOL_CALL_FORMATS[call_format].parser({"paint": None, "ring": None}, frozenset())
    return ReplyReader(ReasoningParser(THINK, inside=False) if reasons else None, LeadingCalls(calls))


@pytest.mark.parametrize("call_format", CALLS)
def test_markers_in_content_are_content(call_format: str) -> None:
    text = " " + json.dumps({"says": f"{CALLS[call_format][0]} <|python_tag|>{{"}) + " "
    for pieces in ([text], list(text)):
        reply = read(reader(call_format), pieces)
        assert reply.content == text and not reply.calls
    reply = read(reader(call_format, reasons=True), list(f"<think>Hm.</think>\n{text.strip()}"))
    assert (reply.content, reply.reasoning, reply.calls) == (text.strip(), "Hm.", [])


@pytest.mark.parametrize("call_format", CALLS)
def test_calls_are_parsed_with_a_form(call_format: str) -> None:
    first, second, between = CALLS[call_format]
    text = first + (between + second if between else "")
    for pieces in ([text], list(text)):
        reply = read(reader(call_format), pieces)
        assert (
            not reply.content and [call[0] for call in reply.calls] == ["paint", "ring"][: len(reply.calls)]
        )
        assert len(reply.calls) == (2 if between else 1)


@pytest.mark.parametrize("call_format", CALLS)
def test_a_beginning_that_is_cut_off_is_content(call_format: str) -> None:
    first = CALLS[call_format][0]
    reply = read(reader(call_format), list(first[:4]))
    assert reply.content == first[:4] and not reply.calls
    assert LeadingCalls(TOOL_CALL_FORMATS[call_format].parser({}, ())).push("x") == [Content("x")]
