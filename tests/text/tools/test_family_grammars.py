"""Forced and strict calls in the formats of the families: what grammars admit is parsed as calls by the schema."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from headrace.core.grammar import JSON_SCHEMA, Grammar
from headrace.errors import InvalidParams
from headrace.text.grammars import GrammarCompiler
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.formats import TOOL_CALL_FORMATS
from headrace.text.tools.grammar.fixed import CALL_FORMATS, answer_grammar
from headrace.text.tools.grammar.forms import FORMS
from headrace.text.tools.grammar.free import free_call_grammar
from headrace.text.tools.grammar.words import ToolSchema
from headrace.text.tools.harmony import HarmonyParser
from headrace.text.tools.reasoning import REASONING_FORMATS
from tests import needs
from tests.places import TALE
from tests.text.replies import Reply, read

llguidance = needs.package("llguidance")

PAINT = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "blü"]},
        "coats": {"$ref": "#/$defs/Count"},
        "note": {"type": "string", "maxLength": 4},
        "wet": {"type": "boolean"},
        "where": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
    },
    "required": ["colour", "coats"],
    "additionalProperties": False,
    "$defs": {"Count": {"type": "integer", "minimum": 1, "maximum": 12}},
}
RING = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"paint": PAINT, "ring": RING, "say": None}
TOOLS = [ToolSchema("paint", PAINT), ToolSchema("ring", RING), ToolSchema("say")]

GOOD: dict[str, tuple[str, str]] = {
    "openai": (
        '<|channel|>commentary to=functions.paint <|constrain|>json<|message|>{"colour": "red", "coats": 2}', "",
    ),
    "gemma4": (
        '<|tool_call>call:paint{"colour": "red", "coats": 2}<tool_call|>', "<|tool_call>call:ring{}<tool_call|>",
    ),
    "functiongemma": (
        '<start_function_call>call:paint{"colour": "red", "coats": 2}<end_function_call>',
        "<start_function_call>call:ring{}<end_function_call>",
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>paint\n```json\n"
        '{"colour": "red", "coats": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', "",
    ),
    "deepseek_v31": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>paint<｜tool▁sep｜>{"colour": "red", "coats": 2}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>", "",
    ),
    "cohere_command3": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "paint", '
        '"parameters": {"colour": "red", "coats": 2}}\n]<|END_ACTION|>', "",
    ),
    "internlm": (
        '<|action_start|><|plugin|>\n{"name": "paint", "parameters": {"colour": "red", "coats": 2}}<|action_end|>',
        '\n<|action_start|><|plugin|>\n{"name": "ring", "parameters": {}}<|action_end|>',
    ),
    "phi4_mini_json": (
        '<|tool_call|>[{"name": "paint", "arguments": {"colour": "red", "coats": 2}}]<|/tool_call|>', "",
    ),
    "granite": ('<|tool_call|>[{"name": "paint", "arguments": {"colour": "red", "coats": 2}}]', ""),
    "lfm2": ('<|tool_call_start|>[paint(colour="red", coats=2)]<|tool_call_end|>', ""),
    "olmo3": ('<function_calls>\npaint(colour="red", coats=2)\n</function_calls>', ""),
    "llama4_json": (
        '<|python_start|>{"name": "paint", "parameters": {"colour": "red", "coats": 2}}<|python_end|>', "",
    ),
    "llama4_pythonic": ('<|python_start|>[paint(colour="red", coats=2)]<|python_end|>', ""),
    "seed_oss": (
        "<seed:tool_call>\n<function=paint>\n<parameter=colour>\nred\n</parameter>\n<parameter=coats>\n2\n</parameter>\n"
        "</function>\n</seed:tool_call>", "\n<seed:tool_call>\n<function=ring>\n</function>\n</seed:tool_call>",
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=paint>\n<parameter=colour>\nred\n</parameter>\n<parameter=coats>\n2\n</parameter>\n"
        "</function>\n</tool_call>", "\n<tool_call>\n<function=ring>\n</function>\n</tool_call>",
    ),
    "glm45": (
        "<tool_call>paint\n<arg_key>colour</arg_key>\n<arg_value>red</arg_value>\n<arg_key>coats</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>", "\n<tool_call>ring\n</tool_call>",
    ),
}  # fmt: skip
"""A call, and what may follow it with several calls."""


@pytest.fixture(scope="module")
def backend() -> Any:
    tokenizer = Tokenizer.from_folder(TALE)
    text = (TALE / "tokenizer.json").read_text()
    return llguidance.LLTokenizer(text, n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.eos_ids))


def matcher(backend: Any, grammar: Grammar) -> Any:
    made = llguidance.LLMatcher(backend, grammar.source, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def accepts(backend: Any, grammar: Grammar, text: str) -> bool:
    one = matcher(backend, grammar)
    # Spelled: <|end|> is a token of this vocabulary, which its grammars were not told.
    ids = [number for part in re.split("(?<=<)(?=[|]end)", text) for number in backend.tokenize_str(part)]
    return bool(one.try_consume_tokens(ids) == len(ids) and one.is_accepting())


def parsed(name: str, text: str) -> Reply:
    return read(TOOL_CALL_FORMATS[name].parser(SCHEMAS, ()), text)


def fixed(name: str, **options: Any) -> Grammar:
    return answer_grammar(options.pop("form", None), TOOLS, name, channels=name == "openai", **options)


def free(name: str, **options: Any) -> Grammar:
    return free_call_grammar(TOOLS, name, channels=name == "openai", **options)


def test_every_format_can_be_forced() -> None:
    assert set(GOOD) | {"hermes", "llama3_json", "mistral"} == set(FORMS) == set(CALL_FORMATS)
    for one in TOOL_CALL_FORMATS.values():
        assert (one.forced or one.name) in FORMS


@pytest.mark.parametrize("name", GOOD)
def test_forced_calls(backend: Any, name: str) -> None:
    call, more = GOOD[name]
    one, many = fixed(name, parallel=False), fixed(name)
    assert parsed(name, call).calls == [["paint", '{"colour": "red", "coats": 2}']]
    for grammar in (one, many):
        assert accepts(backend, grammar, call)
        for wrong in ("", f" {call}", f"{call}x", call[:-1], call.replace("red", "dead"), call.replace("2", "13"),
                      call.replace("paint", "print")):  # fmt: skip
            assert not accepts(backend, grammar, wrong), wrong
    if more:
        assert accepts(backend, many, call + more) and not accepts(backend, one, call + more)


STRICT = [name for name in GOOD if not name.startswith("llama4")]


@pytest.mark.parametrize("name", STRICT)
def test_strict_calls(backend: Any, name: str) -> None:
    call, _ = GOOD[name]
    grammar = free(name)
    front = "" if name == "openai" else "I look: "
    assert accepts(backend, grammar, front + call)
    assert not accepts(backend, grammar, front + call.replace("red", "dead"))
    assert not accepts(backend, grammar, front + call.replace("paint", "print"))
    plain = "<|channel|>final<|message|>No." if name == "openai" else "No, a < b {"
    assert accepts(backend, grammar, plain)
    if name != "openai":
        assert accepts(backend, grammar, f"{front}{call} and on") and not accepts(
            backend, free(name, parallel=False), f"{front}{call} and on"
        )


@pytest.mark.parametrize(
    ("name", "strict"),
    [
        pytest.param(
            name, strict, id=f"{name}-{'strict' if strict else 'forced'}",
            marks=() if name in ("glm45", "openai") else pytest.mark.long,
        )
        for strict, names in ((False, GOOD), (True, STRICT))
        for name in names
    ],
)  # fmt: skip
def test_what_is_generated_at_random_is_parsed_as_calls_by_the_schema(
    backend: Any, name: str, strict: bool
) -> None:
    grammar = free(name) if strict else fixed(name)
    called = 0
    for seed in range(4):
        rng, ids = random.Random(seed), []
        one = matcher(backend, grammar)
        if strict:  # a text alone would hardly ever call
            ids = list(backend.tokenize_str(GOOD[name][0][: GOOD[name][0].index("paint")]))
            assert one.try_consume_tokens(ids) == len(ids)
        while not one.is_stopped() and len(ids) < 500:
            mask = int.from_bytes(one.compute_bitmask(), "little")
            if any(mask >> end & 1 for end in backend.eos_tokens):
                break
            ids.append(rng.choice([i for i in range(backend.vocab_size) if mask >> i & 1]))
            assert one.consume_token(ids[-1])
        reply = parsed(name, backend.decode_str(ids))
        for tool, written in reply.calls if one.is_accepting() else reply.calls[:-1]:
            arguments = json.loads(written)
            assert tool in SCHEMAS and isinstance(arguments, dict)
            assert SCHEMAS[tool] is None or jsonschema_rs.is_valid(SCHEMAS[tool], arguments), (tool, written)
            called += 1
    assert called


def test_other_marks_begin_calls_that_follow_the_schema(backend: Any) -> None:
    for name, call in (
        ("granite", '<tool_call>[{"name": "paint", "arguments": {"colour": "red", "coats": 2}}]'),
        (
            "phi4_mini_json",
            'functools[{"name": "paint", "arguments": {"colour": "red", "coats": 2}}]<|/tool_call|>',
        ),
        ("qwen3_coder", GOOD["qwen3_coder"][0].removeprefix("<tool_call>\n")),
        (
            "deepseek_v31",
            '<｜tool▁call▁begin｜>paint<｜tool▁sep｜>{"colour": "red", "coats": 2}<｜tool▁call▁end｜>',
        ),
    ):
        assert len(parsed(name, call).calls) == 1
        assert accepts(backend, free(name), call)
        assert not accepts(backend, free(name), call.replace("red", "dead")), name


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        ({"anyOf": [{"required": ["a"]}]}, "anyOf"),
        ({"properties": {"a": {"type": "string", "not": {"const": "x"}}}}, "'not'"),
        ({"properties": {"a": {"type": "string", "maxLength": -1}}}, "length"),
        ({"properties": {"a": {"enum": ["</parameter>"]}}}, "</parameter>"),
        ({"properties": {"a>b": {}}}, "tags cannot hold"),
    ],
)
def test_limits_of_text_between_tags(parameters: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidParams, match=what):
        answer_grammar(None, [ToolSchema("f", parameters)], "qwen3_coder")


def test_texts_between_tags_follow_their_keywords(backend: Any) -> None:
    schema = {
        "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 3},
                       "b": {"type": "string", "pattern": "^x+$"}, "c": {"type": "string", "format": "date"}},
        "required": [],
    }  # fmt: skip
    grammar = answer_grammar(None, [ToolSchema("f", schema)], "glm45")

    def text(**values: str) -> str:
        parts = [f"<arg_key>{key}</arg_key>\n<arg_value>{each}</arg_value>\n" for key, each in values.items()]
        return f"<tool_call>f\n{''.join(parts)}</tool_call>"

    for good in ({}, {"a": "ab"}, {"a": "<b>"}, {"b": "xx"}, {"c": "any"}, {"a": "abc", "b": "x", "c": ""}):
        assert accepts(backend, grammar, text(**good)), good
    for bad in ({"a": "a"}, {"a": "abcd"}, {"b": "yx"}, {"b": "xy"}, {"d": "x"}, {"b": "x", "a": "ab"}):
        assert not accepts(backend, grammar, text(**bad)), bad


def test_strict_tools_of_a_format_that_has_none_are_refused() -> None:
    for name in GOOD.keys() - set(STRICT):
        with pytest.raises(InvalidParams, match=name):
            free_call_grammar(TOOLS, name)


# ---- Harmony ----

PET = Grammar(JSON_SCHEMA, {"type": "object", "properties": {}, "additionalProperties": False})  # type: ignore[arg-type]
HOW = REASONING_FORMATS["openai_gptoss"]
CALL = GOOD["openai"][0]


def test_reasoning_precedes_a_forced_call_in_channels(backend: Any) -> None:
    grammar = fixed("openai", reasoning=HOW)
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    for text in (CALL, thought + CALL):
        assert accepts(backend, grammar, text)
        assert len(read(HarmonyParser(SCHEMAS, shows=False), text).calls) == 1
    assert not accepts(backend, grammar, thought) and not accepts(backend, grammar, "Hm.")
    assert accepts(
        backend, fixed("openai", reasoning=HOW, inside=True), f"Hm.<|end|><|start|>assistant{CALL}"
    )


def test_a_form_stands_in_the_final_channel(backend: Any) -> None:
    final = "<|channel|>final<|message|>{}"
    alone = answer_grammar(PET, channels=True, reasoning=HOW)
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert accepts(backend, alone, final) and accepts(backend, alone, thought + final)
    assert not accepts(backend, alone, "{}") and not accepts(backend, alone, CALL)
    beside = fixed("openai", form=PET, reasoning=HOW)
    assert accepts(backend, beside, thought + final) and accepts(backend, beside, thought + CALL)
    going_on = fixed("openai", form=PET, answering=True)
    assert accepts(backend, going_on, "{}") and accepts(backend, going_on, f"<|end|><|start|>assistant{CALL}")


def test_strict_calls_among_messages(backend: Any) -> None:
    grammar = free("openai", reasoning=HOW)
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    said = "<|channel|>commentary<|message|>I paint.<|end|><|start|>assistant"
    assert accepts(backend, grammar, thought + said + thought + CALL)
    assert accepts(backend, grammar, f"{thought}<|channel|>final<|message|>Done.<|end|>")
    assert not accepts(backend, grammar, thought + CALL.replace("red", "dead"))
    assert not accepts(backend, grammar, f"<|channel|>final<|message|>a<|end|><|start|>assistant{CALL}")


# ---- Marks that are tokens ----

MARKS = {
    "openai": ("<|return|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"),
    "glm45": ("<eos>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_value>", "<arg_value>"),
    "qwen3_coder": ("<eos>", "<tool_call>", "</tool_call>", "<think>", "</think>", "<other>"),
    "gemma4": ("<eos>", "<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>", '<|"|>'),
    "deepseek_v31": ("<eos>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                     "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    "lfm2": ("<eos>", "<|tool_call_start|>", "<|tool_call_end|>", "<think>", "</think>", "<other>"),
    "internlm": ("<eos>", "<|action_start|>", "<|plugin|>", "<|action_end|>", "<other>", "<another>"),
}  # fmt: skip
"""What ends a text, and marks, in place of tale's special tokens."""


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    def make(name: str) -> Tokenizer:
        folder = tmp_path_factory.mktemp(name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            text = (TALE / file).read_text()
            for old, new in zip(
                ("end", "begin", "system", "user", "assistant", "pad"), MARKS[name], strict=True
            ):
                text = text.replace(json.dumps(f"<|{old}|>"), json.dumps(new, ensure_ascii=False))
            (folder / file).write_text(text)
        return Tokenizer.from_folder(folder)

    return make


@pytest.mark.parametrize("reasons", [False, True], ids=["answers", "reasons"])
@pytest.mark.parametrize("name", MARKS)
def test_marks_that_are_tokens_are_written_as_tokens(
    vocabulary: Callable[[str], Tokenizer], name: str, reasons: bool
) -> None:
    tokenizer = vocabulary(name)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
    how = {"openai": "openai_gptoss", "gemma4": "gemma4"}.get(name, "qwen3")
    reasoning = REASONING_FORMATS[how] if reasons else None
    options: dict[str, Any] = {"reasoning": reasoning, "channels": name == "openai"}
    call, _ = GOOD[name]
    thought = ""
    if reasoning is not None:
        thought = f"{reasoning.open}Hm.{reasoning.close}" + ("<|start|>assistant" if name == "openai" else "")
    texts = [call, thought + call]
    for grammar in (
        answer_grammar(None, TOOLS, name, tokenizer, **options),
        free_call_grammar(TOOLS, name, tokenizer, **options),
    ):
        compiled = compiler.compile(grammar)
        for text in texts:
            for wrong in (False, True):
                ids = tokenizer.encode(
                    text.replace("red", "dead") if wrong else text, add_special_tokens=False
                )
                one = compiled.start()
                done = one.try_consume_tokens(ids) == len(ids) and one.is_accepting()
                assert done is not wrong, (text, grammar.source)
