"""Compiled grammars: random walks through their masks end in texts that belong to them, whatever the source."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from headrace.core.grammar import Grammar
from headrace.text.tokenizer import Tokenizer
from tests import needs
from tests.places import TALE

needs.package("llguidance")

from headrace.text.grammars import GrammarCompiler  # noqa: E402

VOCAB, EOS = 2048, 1


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TALE)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, VOCAB, frozenset({EOS}))


def walk(compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar, rng: random.Random) -> str | None:
    """A text of the grammar, token by token at random; None where it grew too long."""
    matcher, ids = compiler.compile(grammar).start(), []
    while len(ids) < 600:
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [token for token in range(VOCAB) if mask >> token & 1]
        assert allowed and not matcher.is_error(), matcher.get_error()
        token = EOS if EOS in allowed else rng.choice(allowed)
        if token == EOS:
            return tokenizer.decode(ids)
        ids.append(token)
        assert matcher.consume_token(token)
    return None


def random_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "integer", "boolean", "null", "enum"] + ["array", "object", "object"] * (depth > 0)
    match rng.choice(kinds):
        case "string":
            return {"type": "string", "maxLength": rng.randint(0, 8)}
        case "integer":
            low = rng.randint(-200, 200)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)}
        case "enum":
            return {
                "enum": rng.sample(["a", 'quo"te', "back\\slash", "ünï", "日本", 7, -1.5, True, None, []], 3)
            }
        case "array":
            least = rng.randint(0, 2)
            items = random_schema(rng, depth - 1)
            return {"type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 2)}
        case "object":
            names = rng.sample(["one", "two words", 'q"', "ключ", "x"], rng.randint(1, 4))
            return {
                "type": "object",
                "properties": {name: random_schema(rng, depth - 1) for name in names},
                "required": rng.sample(names, rng.randint(0, len(names))),
                "additionalProperties": False,
            }
        case kind:
            return {"type": kind}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    if "enum" in schema:
        return any(type(value) is type(one) and value == one for one in schema["enum"])
    match schema["type"]:
        case "string":
            return isinstance(value, str) and len(value) <= schema["maxLength"]
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            good = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
            return good and all(fits(item, schema["items"]) for item in value)
        case _:
            good = isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(
                schema["properties"]
            )
            return good and all(fits(item, schema["properties"][name]) for name, item in value.items())


@pytest.mark.parametrize("seed", range(40))
def test_texts_of_random_schemas_fit_them(compiler: GrammarCompiler, tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    schema = random_schema(rng, 3)
    text = walk(compiler, tokenizer, Grammar("json_schema", schema), rng)  # type: ignore[arg-type]
    assert text is not None
    assert fits(json.loads(text), schema), (schema, text)


def test_the_checker_of_these_tests_finds_wrong_texts() -> None:
    assert fits([1], {"type": "array", "items": {"enum": [1]}, "minItems": 1, "maxItems": 1})
    wrong: list[tuple[Any, dict[str, Any]]] = [
        ("abc", {"type": "string", "maxLength": 2}),
        (True, {"type": "integer", "minimum": 0, "maximum": 5}),
        (6, {"type": "integer", "minimum": 0, "maximum": 5}),
        (1, {"enum": [True]}),
        ([], {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2}),
        ({"b": None}, {"type": "object", "properties": {"a": {"type": "null"}}, "required": []}),
        ({}, {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}),
    ]
    assert not any(fits(value, schema) for value, schema in wrong)


ODD = [
    "a",
    "line\nbreak",
    "tab\there",
    'quo"te',
    "back\\slash",
    "/slash/",
    "日本語",
    "emoji 😀",
    "{x}",
    "%json",
    "\x7f",
    "//",
    "~",
    " ",
]


@pytest.mark.parametrize("choice", ODD, ids=repr)
def test_choices_of_any_text(compiler: GrammarCompiler, tokenizer: Tokenizer, choice: str) -> None:
    rng = random.Random(0)
    assert walk(compiler, tokenizer, Grammar("choice", [choice]), rng) == choice  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pattern",
    [r"\d{3}-\d{2}", "(?i)abc", "[^a-z]{4}", "^start$", "x|yy|zzz", r"a/b\.c", r"[\u00e0-\u00ff]{2}"],
)
def test_texts_of_regular_expressions_match_them(
    compiler: GrammarCompiler, tokenizer: Tokenizer, pattern: str
) -> None:
    for seed in range(5):
        text = walk(compiler, tokenizer, Grammar("regex", pattern), random.Random(seed))
        assert text is not None and re.fullmatch(pattern, text), text


def test_any_object(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    made = [walk(compiler, tokenizer, Grammar("json_object"), random.Random(seed)) for seed in range(10)]
    ended = [text for text in made if text is not None]
    assert ended and all(isinstance(json.loads(text), dict) for text in ended)
