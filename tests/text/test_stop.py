from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.params import MAX_STOP_CHARS, MAX_STOP_STRINGS
from headrace.errors import InvalidParams
from headrace.text.stop import StopAutomaton, StopChecker
from tests.work import lines_run

FEW = st.sampled_from("abc")


def checker(stops: list[str], include: bool = False) -> StopChecker:
    return StopChecker(StopAutomaton(stops), include)


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The match rule, searched for in the whole text: first end wins, then the longest."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            longest = max(matches, key=len)
            return text[:end] if include else text[: end - len(longest)], longest
    return text, None


def stream(checker: StopChecker, pieces: list[str]) -> tuple[str, str | None]:
    text = ""
    for piece in pieces:
        safe, matched = checker.push(piece)
        text += safe
        if matched is not None:
            return text, matched
    return text + checker.flush(), None


@given(
    st.lists(st.text(FEW, max_size=6), max_size=8),
    st.lists(st.text(FEW, min_size=1, max_size=5), max_size=5),
    st.booleans(),
)
def test_same_as_a_search_in_the_whole_text(pieces: list[str], stops: list[str], include: bool) -> None:
    assert stream(checker(stops, include), pieces) == naive("".join(pieces), stops, include)


@given(st.text(FEW, max_size=20), st.lists(st.text(FEW, min_size=1, max_size=6), min_size=1, max_size=4))
def test_no_more_is_held_back_than_needed(text: str, stops: list[str]) -> None:
    stopper = checker(stops)
    seen = shown = ""
    for char in text:
        safe, matched = stopper.push(char)
        if matched is not None:
            return
        seen, shown = seen + char, shown + safe
        held = seen[len(shown) :]
        assert seen.startswith(shown)
        candidates = [seen[i:] for i in range(len(seen)) if any(s.startswith(seen[i:]) for s in stops)]
        assert held == max(candidates, key=len, default="")


def test_across_pieces() -> None:
    stopper = checker(["<|im_end|>", "\n\nUser:"])
    assert stopper.push("Hello <|im_") == ("Hello ", None)
    assert stopper.push("start") == ("<|im_start", None)
    assert stopper.push("\n\nUs") == ("", None)
    assert stopper.matched is None
    assert stopper.push("er: more") == ("", "\n\nUser:")
    assert stopper.matched == "\n\nUser:"
    assert stopper.push("ignored") == ("", "\n\nUser:")
    assert stopper.flush() == ""


def test_the_match_may_be_kept() -> None:
    assert stream(checker(["stop"], True), ["a st", "op b"]) == ("a stop", "stop")
    assert stream(checker(["stop"], False), ["a st", "op b"]) == ("a ", "stop")


def test_first_end_then_longest() -> None:
    assert checker(["bc", "abcd"]).push("abcd") == ("a", "bc")
    assert checker(["c", "bc", "abc"]).push("xabc") == ("x", "abc")


def test_flush_gives_back_what_was_held() -> None:
    stopper = checker(["abcabd"])
    assert stopper.push("xabcab") == ("x", None)
    assert stopper.flush() == "abcab"
    assert stopper.flush() == ""


def test_no_stops_hold_nothing() -> None:
    stopper = checker([])
    assert stopper.push("anything") == ("anything", None)
    assert stopper.flush() == ""


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ("stop", "list"),
        (5, "list"),
        ([""], "non-empty"),
        ([None], "non-empty"),
        (["x"] * (MAX_STOP_STRINGS + 1), "at most"),
        (["x" * MAX_STOP_CHARS, "y"], "longer"),
    ],
)
def test_bad_stops(stops: object, message: str) -> None:
    with pytest.raises(InvalidParams, match=message):
        StopAutomaton(stops)  # type: ignore[arg-type]


def test_hostile_stops_cost_no_more() -> None:
    """A few lines of Python a character, however long the stops are."""
    shown: list[str] = []
    size = 2 * MAX_STOP_CHARS

    def pieces() -> None:
        shown.extend(stopper.push("a")[0] for _ in range(size))

    def at_once() -> None:
        shown.extend((stopper.push("a" * size)[0], stopper.flush()))

    stopper = checker(["a" * (MAX_STOP_CHARS - 100) + "b", "a" * 90 + "c"])
    lines = lines_run(pieces) + lines_run(at_once)
    assert sum(map(len, shown)) == 2 * size
    assert lines < 60 * size


def test_equal_stops_share_one_automaton_while_it_is_in_use() -> None:
    first, again = StopAutomaton.of(["a", "b"]), StopAutomaton.of(("a", "b"))
    assert first is again
    assert StopAutomaton.of(["b", "a"]) is not first
    one, other = StopChecker(first), StopChecker(first)
    assert one.push("xa") == ("x", "a")
    assert other.push("xc") == ("xc", None) and other.matched is None
    gone = weakref.ref(first)
    del first, again, one, other
    gc.collect()
    assert gone() is None
