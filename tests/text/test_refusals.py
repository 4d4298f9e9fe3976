"""What was refused is refused again at once, for a while."""

from __future__ import annotations

import pytest

from headrace.core.grammar import MAX_GRAMMAR_CHARS, Grammar
from headrace.errors import InvalidParams
from headrace.text.grammar_store import MAX_REFUSED, REMEMBERED_S, GrammarStore, Refusals


def test_refusals_are_bounded_and_expire() -> None:
    now = 0.0
    refusals = Refusals(lambda: now)
    for i in range(MAX_REFUSED + 1):
        refusals.add(Grammar("regex", f"r{i}"), f"no {i}")
    assert len(refusals) == MAX_REFUSED
    assert refusals.reason(Grammar("regex", "r0")) is None
    assert refusals.reason(Grammar("regex", "r1")) == "no 1"
    assert refusals.reason(Grammar("lark", "r1")) is None
    now = REMEMBERED_S - 1
    refusals.add(Grammar("regex", "r1"), "still no")
    now = REMEMBERED_S
    assert refusals.reason(Grammar("regex", "r1")) == "still no"
    assert refusals.reason(Grammar("regex", "r2")) is None
    assert len(refusals) == MAX_REFUSED - 1


def test_a_long_source_is_not_kept() -> None:
    refusals = Refusals()
    long = Grammar("regex", "é" * MAX_GRAMMAR_CHARS)
    refusals.add(long, "no")
    assert refusals.reason(long) == "no"
    assert all(len(key) == 32 for key in refusals._reasons)


def test_a_store_refuses_before_it_compiles() -> None:
    store = GrammarStore(None, 2048, frozenset({1}))  # could compile nothing
    store.refuse(Grammar("regex", "a"), "too large")
    for ask in (store.known, store.get):
        with pytest.raises(InvalidParams, match="too large"):
            ask(Grammar("regex", "a"))
