"""Answers that are free but for their calls: texts that their grammars accept are parsed as their parsers do."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import llguidance
import pytest

from headrace.errors import InvalidParams
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.grammars import Compiled, GrammarCompiler
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.formats import TOOL_CALL_FORMATS
from headrace.text.tools.grammar.fixed import answer_grammar
from headrace.text.tools.grammar.free import free_call_grammar
from headrace.text.tools.grammar.words import ToolSchema
from headrace.text.tools.reader import ReplyReader
from headrace.text.tools.reasoning import REASONING_FORMATS, ReasoningParser
from tests.places import TALE
from tests.text.replies import Reply, reply_of

PAINT = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "blü"]},
        "coats": {"$ref": "#/$defs/Count"},
        "rooms": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "wet": {"type": "boolean"},
    },
    "required": ["colour", "coats"],
    "additionalProperties": False,
    "$defs": {"Count": {"type": "integer", "minimum": 1, "maximum": 12}},
}
RING = {"type": "object", "properties": {}, "additionalProperties": False}
STRICT = {"paint": PAINT, "ring": RING}
TOOLS = [*(ToolSchema(name, schema) for name, schema in STRICT.items()), ToolSchema("note")]

MARKERS = {
    "hermes": ("<tool_call>", "</tool_call>", "<think>", "</think>"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
    "llama3_json": ("<|python_tag|>", "<|eom|>", "<think>", "</think>"),
    "pythonic": ("<|python_start|>", "<|eom|>", "<think>", "</think>"),
}
"""What becomes a token of its own in place of one of tale's."""
SEEDS = 10
REASONING = {name: "mistral" if name == "mistral" else "qwen3" for name in MARKERS}


@dataclass(frozen=True)
class Model:
    """A tokenizer for one format of calls. `special`: what its tokens for markers are to it."""

    tokenizer: Tokenizer
    compiler: GrammarCompiler
    call_format: str

    def compile(self, **options: Any) -> Compiled:
        return self.compiler.compile(free_call_grammar(TOOLS, self.call_format, self.tokenizer, **options))

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def spelled(self, text: str) -> list[int]:
        """Without tokens for markers."""
        return [one for part in text for one in self.tokenizer.encode(part, add_special_tokens=False)]

    def read(
        self,
        ids: list[int],
        parallel: bool = True,
        reasons: bool = False,
        inside: bool = False,
        skip: bool = True,
    ) -> Reply:
        """As the server reads it."""
        calls = TOOL_CALL_FORMATS[self.call_format]
        how = REASONING_FORMATS[REASONING[self.call_format]] if reasons else None
        marks = (*calls.markers, *((how.open, how.close) if how else ()))
        special = {mark: self.tokenizer.special_id(mark) for mark in marks}
        shown = frozenset(one for one in special.values() if one is not None)
        hidden = frozenset(mark for mark, one in special.items() if one is not None) if skip else frozenset()
        text = IncrementalDetokenizer(self.tokenizer, skip, visible=shown)
        reader = ReplyReader(
            ReasoningParser(how, inside, hidden) if how else None,
            calls.parser({tool.name: tool.parameters for tool in TOOLS}, hidden),
            single=not parallel,
        )
        pieces = [piece for one in ids for piece in reader.push(text.push([one]))]
        return reply_of([*pieces, *reader.push(text.finish()), *reader.finish()])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Model]:
    made: dict[tuple[str, str], Model] = {}

    def make(call_format: str, kind: str) -> Model:
        if (call_format, kind) not in made:
            folder = tmp_path_factory.mktemp("model")
            shutil.copytree(TALE, folder, dirs_exist_ok=True)
            if kind != "spelled":
                for name in ("tokenizer.json", "tokenizer_config.json"):
                    text = (folder / name).read_text()
                    for old, new in zip(
                        ("system", "user", "assistant", "pad"), MARKERS[call_format], strict=True
                    ):
                        text = text.replace(f"<|{old}|>", new)
                    (folder / name).write_text(text)
            if kind == "added":  # as Qwen has them: tokens of their own, but no special ones
                data = json.loads((folder / "tokenizer.json").read_text())
                for token in data["added_tokens"]:
                    token["special"] = token["content"] not in MARKERS[call_format]
                (folder / "tokenizer.json").write_text(json.dumps(data))
                (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
            tokenizer = Tokenizer.from_folder(folder)
            compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
            made[call_format, kind] = Model(tokenizer, compiler, call_format)
        return made[call_format, kind]

    return make


def wander(
    model: Model, compiled: Compiled, rng: random.Random, snippets: list[str], first: str = ""
) -> tuple[list[int], bool]:
    """Ids of an output that the grammar admits, and whether it is complete.

    They are random, but drawn to what could be a call by a misunderstanding."""
    matcher = compiled.start()
    tokenizer = model.tokenizer
    others = [*tokenizer.structural_tokens.values()]
    ids = model.ids(first) if rng.random() < 0.5 else model.spelled(first)
    assert matcher.try_consume_tokens(ids) == len(ids)
    for step in range(400):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        ends = [one for one in tokenizer.eos_ids if mask >> one & 1]
        if ends and (step > 40 or rng.random() < 0.03):
            break
        kind = rng.random()
        if kind < 0.5 and step <= 40:
            expected = (model.ids if rng.random() < 0.5 else model.spelled)(rng.choice(snippets))
            if rng.random() < 0.3:
                expected.insert(rng.randrange(len(expected)), rng.choice(others))
            taken = expected[: matcher.try_consume_tokens(expected)]
        elif kind < 0.6 and step <= 40:
            expected = [rng.choice(others)]
            taken = expected[: matcher.try_consume_tokens(expected)]
        else:
            taken = []
        if not taken:
            allowed = [i for i in range(tokenizer.vocab_size) if mask >> i & 1 and i not in tokenizer.eos_ids]
            if not allowed:
                break
            taken = [rng.choice(allowed)]
            assert matcher.consume_token(taken[0])
        ids += taken
        assert not matcher.is_error(), matcher.get_error()
        if matcher.is_stopped():
            break
    return [one for one in ids if one not in tokenizer.eos_ids], matcher.is_accepting()


BAD = '{"colour": "green", "coats": 99}'
GOOD = '{"colour": "red", "coats": 2}'
SNIPPETS = {
    "hermes": [
        "<tool_call>", "</tool_call>", "<tool", "_call>", "<", "\n", f'{{"name": "paint", "arguments": {BAD}}}',
        f'<tool_call>\n{{"name": "paint", "arguments": {GOOD}}}\n</tool_call>', '{"arguments": ',
        f'<tool_call>{{"name": "ring", "arguments": {BAD}}}', '<tool_call>{"name": "other", "arguments": {}}',
    ],
    "mistral": [
        "[TOOL_CALLS]", "[TOOL", "_CALLS]", "[", " ", "]", ", ", f'[{{"name": "paint", "arguments": {BAD}}}]',
        f'[TOOL_CALLS][{{"name": "paint", "arguments": {GOOD}}}', f"[TOOL_CALLS]paint[ARGS]{BAD}",
        f"[TOOL_CALLS]paint[ARGS]{GOOD}", "[TOOL_CALLS]paint{", "[CALL_ID]ab12", "ring[ARGS]{",
    ],
    "llama3_json": [
        "<|python_tag|>", "<|python", "_tag|>", "<", "{", '"', ";", " ", '{"name": "paint"', '{"type": "function", ',
        f'{{"name": "paint", "parameters": {BAD}}}', f'{{"parameters": {BAD}, "name": "paint"}}', "\\u0061", "\\",
        f'{{"name": "p\\u0061int", "parameters": {BAD}}}', f'{{"n\\u0061me": "paint", "parameters": {BAD}}}',
        f'{{"id": 1, "name": "paint", "parameters": {BAD}}}', f'{{"name": "paint", "parameters": {GOOD}}}',
        f'{{"type": "x\\"", "name": "paint", "parameters": {BAD}}}', f'{{"name" : "ring", "arguments": {BAD}}}',
        '{"city": "Oslo"}', '{"name": "Ann", ', '"name": "paint", ', '"parameters": {"colour": 1}}', '{ "id"', "; {",
    ],
    "pythonic": [
        "[", "]", "(", ")", "paint", "paint(", "[paint(", " [ ", "ring(", ", ", "[paint(colour='green', coats=99)]",
        '[paint(colour="red", coats=2)]', "[ring(x=1)]", "[1, 2]", "'", '"', "ring()", "note(a=[1, {'b': None}])",
    ],
}  # fmt: skip
BEGINNINGS = {"llama3_json": '{"name": "paint"', "pythonic": "[paint("}


def ways() -> list[object]:
    """All kinds of markers with each way to reason, once with several calls and once with one at most. The usual run
    takes each kind and each way once."""
    kinds, reasons = ["special", "added", "spelled"], ["no", "may", "inside"]
    return [
        pytest.param(
            kind, reason, parallel, id=f"{kind}-{reason}-{'parallel' if parallel else 'single'}",
            marks=() if row == column and parallel == (row % 2 == 0) else pytest.mark.long,
        )
        for row, kind in enumerate(kinds) for column, reason in enumerate(reasons) for parallel in (True, False)
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "reasons", "parallel"), ways())
@pytest.mark.parametrize("call_format", MARKERS)
def test_every_parsed_call_follows_its_schema(
    model: Callable[[str, str], Model], call_format: str, kind: str, reasons: str, parallel: bool
) -> None:
    one = model(call_format, kind)
    how = REASONING_FORMATS[REASONING[call_format]] if reasons != "no" else None
    compiled = one.compile(parallel=parallel, reasoning=how, inside=reasons == "inside")
    snippets = SNIPPETS[call_format] + ([how.open, how.close, how.close[:4], how.open[-3:]] if how else [])
    called = thought = 0
    for seed in range(SEEDS):
        first = BEGINNINGS.get(call_format, "") if seed % 3 == 0 else ""
        if how is not None and reasons == "inside" and first:
            first = how.close + first
        if how is not None and reasons == "may" and seed % 2:
            first = how.open + (how.close + first if first else "")
        ids, complete = wander(one, compiled, random.Random(seed), snippets, first)
        for skip in (True, False):
            reply = one.read(ids, parallel, reasons != "no", reasons == "inside", skip)
            what = (seed, skip, one.tokenizer.decode(ids, False), reply)
            for name, written in reply.calls if complete else reply.calls[:-1]:
                arguments = json.loads(written)
                assert isinstance(arguments, dict) and name in {tool.name for tool in TOOLS}, what
                if name in STRICT:
                    assert jsonschema_rs.is_valid(STRICT[name], arguments), what
            assert parallel or len(reply.calls) <= 1, what
            called += len(reply.calls)
            thought += bool(reply.reasoning)
    assert called > SEEDS // 10 and (reasons == "no" or thought > SEEDS // 10)


def admits(one: Model, compiled: Compiled, *parts: str | int) -> bool:
    """An output may be this: ids, texts spelled out, and those with a "!" before them in the tokenizer's own way."""
    ids: list[int] = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += one.ids(part[1:]) if part.startswith("!") else one.spelled(part)
    matcher = compiled.start()
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


OTHER = 0  # a token that is not text, and that readers do not see
CALL = '{"name": "paint", "arguments": {"colour": "red", "coats": 2}}'
LLAMA = CALL.replace("arguments", "parameters")
WRONG = '{"name": "paint", "arguments": {"colour": "green", "coats": 2}}'
WRONG_LLAMA = WRONG.replace("arguments", "parameters")
TRAPS: dict[str, list[tuple[bool, tuple[str | int, ...]]]] = {
    "hermes": [
        (True, ("It is <b>fine</b>, 2 < 3 <tool_cal",)),
        (True, ("Ü ", OTHER, "text", OTHER, OTHER)),
        (True, ("So:", f"!<tool_call>\n{CALL}\n</tool_call>", " and ", f"!<tool_call>{CALL}</tool_call>", "\n")),
        (True, ("!<tool_call>\n{\"name\": \"note\", \"arguments\": {\"x\": [1]}}\n</tool_call>",)),
        (False, (f"!<tool_call>\n{WRONG}\n</tool_call>",)),
        (False, (f"<tool_call>\n{WRONG}\n!</tool_call>",)),
        (False, (f"!<tool_call>\n{CALL}\n",)),
        (False, ("!<tool_call>", "nothing", "!</tool_call>")),
        (False, ("<tool_", OTHER, "call>" + WRONG)),
    ],
    "mistral": [
        (True, ("A list: [1, 2] [TOOL_CALL",)),
        (True, (f"!So: [TOOL_CALLS] [{CALL}, {CALL}] Well.",)),
        (True, ('!So: [TOOL_CALLS]paint[ARGS]{"colour": "red", "coats": 2}[TOOL_CALLS]ring[CALL_ID]a1[ARGS]{}',)),
        (False, (f"![TOOL_CALLS][{CALL}, {WRONG}]",)),
        (False, (f"[TOOL_CALLS][{WRONG}]",)),
        (False, ('![TOOL_CALLS]paint[ARGS]{"colour": 1}',)),
        (False, ('![TOOL_CALLS]paint{"colour": 1}',)),
        (False, ("[TOOL_", OTHER, f"CALLS][{WRONG}]")),
    ],
    "llama3_json": [
        (True, ('{"city": "Oslo", "name": "paint", "parameters": {}}',)),
        (True, ('{"type": "object", "properties": {}}',)),
        (True, ('{"name": "Ann", "age": 3}',)),
        (True, (f"{LLAMA}; {LLAMA}",)),
        (True, (f'{{"type": "function", {LLAMA[1:]}',)),
        (True, (f"!Look: <|python_tag|>{LLAMA} and on",)),
        (True, (f"So {WRONG_LLAMA}",)),  # no call: it has no tag, and other text before it
        (False, (WRONG_LLAMA,)),
        (False, (f"{LLAMA}; {WRONG_LLAMA}",)),
        (False, ('{"parameters": {"colour": 1}, "name": "paint"}',)),
        (False, ('{"name": "p\\u0061int", "parameters": {"colour": 1}}',)),
        (False, ('{"n\\u0061me": "paint", "parameters": {"colour": 1}}',)),
        (False, ('{"id": 7, "arguments": {"colour": 1}, "name": "paint"}',)),
        (False, (OTHER, WRONG_LLAMA)),
        (False, ('{"na', OTHER, WRONG_LLAMA[4:])),
        (False, ("So <|python", OTHER, "_tag|>" + WRONG_LLAMA)),
    ],
    "pythonic": [
        (True, ("[1, 2]",)),
        (True, ("[other(x=1)]",)),
        (True, ("So: [ring(x=1)]",)),
        (True, ('[paint(colour="red", coats=2, wet=true), ring(), note(a={"b": [null]})] Well.',)),
        (False, ('[paint(colour="red")]',)),
        (False, ('[paint(coats=2, colour="red", coats=200)]',)),
        (False, ('[ring(), paint(colour="green", coats=2)]',)),
        (False, (OTHER, "[ring(x=1)]")),
        (False, ("[ri", OTHER, "ng(x=1)]")),
    ],
}  # fmt: skip


@pytest.mark.parametrize("call_format", TRAPS)
def test_accepted_and_refused_texts(model: Callable[[str, str], Model], call_format: str) -> None:
    one = model(call_format, "special")
    compiled = one.compile()
    for admitted, parts in TRAPS[call_format]:
        assert admits(one, compiled, *parts) == admitted, parts


@pytest.mark.parametrize("call_format", ["hermes", "mistral", "llama3_json"])
def test_a_single_call_ends_the_answer(model: Callable[[str, str], Model], call_format: str) -> None:
    one = model(call_format, "special")
    compiled = one.compile(parallel=False)
    call = next(parts[0] for admitted, parts in TRAPS[call_format] if not admitted)
    good = str(call).replace(WRONG, CALL).replace(WRONG_LLAMA, LLAMA)
    good = f"![TOOL_CALLS][{CALL}]" if call_format == "mistral" else good
    assert admits(one, compiled, good) and not admits(one, compiled, good + " ")


@pytest.mark.parametrize("inside", [False, True])
def test_text_in_reasoning_is_unconstrained(model: Callable[[str, str], Model], inside: bool) -> None:
    one = model("hermes", "special")
    compiled = one.compile(reasoning=REASONING_FORMATS["qwen3"], inside=inside)
    thoughts = "" if inside else "!<think>"
    wrong = f"!<tool_call>{WRONG}</tool_call>"
    assert admits(one, compiled, thoughts, "Hm. ", wrong, OTHER, "Well")
    assert admits(one, compiled, thoughts, f"Hm. {wrong[1:]}", OTHER, "Well")
    assert admits(one, compiled, thoughts, wrong, "!</think>", "So:", f"!<tool_call>{CALL}</tool_call>")
    assert not admits(one, compiled, thoughts, "Hm.", "!</think>", "So:", wrong)
    assert not admits(one, compiled, thoughts, "Hm.</thi", OTHER, f"nk>{wrong[1:]}")
    if not inside:
        assert admits(one, compiled, "So: <think> is a word") and not admits(
            one, compiled, "So: <think>", wrong
        )
        assert not admits(one, compiled, OTHER, "!<think>", wrong)


@pytest.mark.parametrize("kind", ["special", "added", "spelled"])
def test_tokens_that_are_no_text_are_those_of_the_library(
    model: Callable[[str, str], Model], kind: str
) -> None:
    one = model("hermes", kind)
    backend = llguidance.LLTokenizer(one.tokenizer.to_json())
    known = {number for number in range(one.tokenizer.vocab_size) if backend.is_special_token(number)}
    known -= {
        number for number in known if one.tokenizer.token_bytes(number) == b"\xff"
    }  # its own mark of these
    assert known == set(one.tokenizer.structural_tokens.values())
    forced = answer_grammar(None, TOOLS, "hermes", one.tokenizer).source
    assert ("<[2]>" in forced) == (kind != "spelled")


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        ({"anyOf": [{"required": ["a"]}]}, "anyOf"),
        ({"properties": {"class": {}}}, "keyword argument"),
        ({"properties": {"a b": {}}}, "keyword argument"),
        ({"properties": {"a": {}}, "required": ["b"]}, "not one of their properties"),
        ({"properties": {"a": {}}, "required": [["a"]]}, "not one of their properties"),
        ({"properties": {"a": True}}, "schemas"),
        ({"type": "string"}, "of an object"),
    ],
)
def test_limits_of_python_arguments(parameters: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidParams, match=what):
        free_call_grammar([ToolSchema("f", parameters)], "pythonic")


def test_optional_arguments_of_python(model: Callable[[str, str], Model]) -> None:
    one = model("pythonic", "special")
    schema = {"properties": {key: {"type": "integer"} for key in "abc"}, "required": ["b"]}
    compiled = one.compiler.compile(free_call_grammar([ToolSchema("f", schema)], "pythonic", one.tokenizer))
    for good in ("b=1", "a=1, b=2", "b=1, c=2", "a=1, b=2, c=3"):
        assert admits(one, compiled, f"[f({good})]")
    for bad in ("", "a=1", "c=1", "a=1, c=1", "b=1, b=2", "b=1,", "1", "b='x'", "d=1, b=1"):
        assert not admits(one, compiled, f"[f({bad})]")


def test_an_unknown_format_and_no_tools_are_refused() -> None:
    with pytest.raises(InvalidParams, match="'xml'"):
        free_call_grammar(TOOLS, "xml")
    with pytest.raises(InvalidParams, match="at least one"):
        free_call_grammar([], "hermes")
