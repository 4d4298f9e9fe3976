"""Grammar: what is checked before anything is compiled, each limit at its value and one past it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.grammar import KINDS, MAX_CHOICES, MAX_GRAMMAR_CHARS, MAX_NESTING, Grammar
from headrace.core.params import SamplingParams
from headrace.errors import InvalidParams

GOOD: list[tuple[str, Any, str]] = [
    ("json_object", "", ""),
    ("json_schema", '{"type": "object"}', '{"type": "object"}'),
    ("json_schema", {"const": "é"}, '{"const": "é"}'),
    ("json_schema", "{}", "{}"),
    ("regex", "a+", "a+"),
    ("choice", ["a", 'b"'], '["a", "b\\""]'),
    ("choice", ("a",), '["a"]'),
    ("choice", '["x"]', '["x"]'),
    ("lark", 'start: "a"', 'start: "a"'),
    ("choice", ["x"] * MAX_CHOICES, "[" + ", ".join(['"x"'] * MAX_CHOICES) + "]"),
    ("regex", "a" * MAX_GRAMMAR_CHARS, "a" * MAX_GRAMMAR_CHARS),
    ("regex", "(" * MAX_NESTING + ")" * MAX_NESTING, "(" * MAX_NESTING + ")" * MAX_NESTING),
    ("regex", r"\(" * 200, r"\(" * 200),
    ("choice", [":("] * 200, "[" + ", ".join(['":("'] * 200) + "]"),
    ("json_schema", {"description": "((" * 100}, '{"description": "' + "((" * 100 + '"}'),
]
BAD: list[tuple[Any, Any, str]] = [
    ("xml", "a", "kind"),
    (None, "a", "kind"),
    ("json_object", "{}", "no source"),
    ("json_object", None, "text"),
    ("json_schema", "", "not JSON"),
    ("json_schema", "[]", "object"),
    ("json_schema", "true", "object"),
    ("json_schema", '{"minimum": NaN}', "NaN"),
    ("json_schema", {"minimum": float("inf")}, "JSON"),
    ("json_schema", {"minimum": object()}, "JSON"),
    ("json_schema", "{" * (MAX_NESTING + 1), "levels deep"),
    ("json_schema", '{"a":' * 60_000, "at most"),
    ("regex", "", "empty"),
    ("regex", b"a", "text"),
    ("regex", 5, "text"),
    ("regex", "a" * (MAX_GRAMMAR_CHARS + 1), "at most"),
    ("regex", "\ud800", "surrogate"),
    ("regex", "(" * (MAX_NESTING + 1) + ")" * (MAX_NESTING + 1), "levels deep"),
    ("lark", "start: " + "(" * (MAX_NESTING + 1), "levels deep"),
    ("lark", "", "empty"),
    ("choice", [], "1 to"),
    ("choice", ["x"] * (MAX_CHOICES + 1), "1 to"),
    ("choice", [""], "empty strings"),
    ("choice", [1], "list of strings"),
    ("choice", '{"a": 1}', "list of strings"),
    ("choice", {"a": 1}, "text"),
]


def deep_schema() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(("kind", "source", "kept"), GOOD, ids=range(len(GOOD)))
def test_good_sources_are_kept_as_text(kind: str, source: Any, kept: str) -> None:
    grammar = Grammar(kind, source)
    assert grammar.source == kept
    assert Grammar(grammar.kind, grammar.source) == grammar  # as it is read at the other end of a socket
    assert SamplingParams(grammar=grammar).grammar is grammar


@pytest.mark.parametrize(("kind", "source", "what"), BAD, ids=range(len(BAD)))
def test_bad_sources_are_refused_in_a_sentence(kind: Any, source: Any, what: str) -> None:
    with pytest.raises(InvalidParams, match=what) as caught:
        Grammar(kind, source)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_an_endless_object_is_refused() -> None:
    with pytest.raises(InvalidParams, match="must be JSON"):
        Grammar("json_schema", deep_schema())  # type: ignore[arg-type]


def test_every_kind_is_covered_here() -> None:
    assert {kind for kind, _, _ in GOOD} == set(KINDS)


@pytest.mark.parametrize("value", ["a+", {"regex": "a+"}, True, ("regex", "a+")], ids=repr)
def test_sampling_params_take_a_grammar_only(value: Any) -> None:
    with pytest.raises(InvalidParams, match="grammar"):
        SamplingParams(grammar=value)
