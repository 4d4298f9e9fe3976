from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidParams
from headrace.text.stop import MAX_STOP_CHARS, MAX_STOPS, StopChecker

FEW = st.sampled_from("abc")


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
@settings(max_examples=100, deadline=None)
def test_same_as_a_search_in_the_whole_text(pieces: list[str], stops: list[str], include: bool) -> None:
    assert stream(StopChecker(stops, include), pieces) == naive("".join(pieces), stops, include)


@given(st.text(FEW, max_size=20), st.lists(st.text(FEW, min_size=1, max_size=6), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_no_more_is_held_back_than_needed(text: str, stops: list[str]) -> None:
    checker = StopChecker(stops)
    seen = shown = ""
    for char in text:
        safe, matched = checker.push(char)
        if matched is not None:
            return
        seen, shown = seen + char, shown + safe
        held = seen[len(shown) :]
        assert seen.startswith(shown)
        candidates = [seen[i:] for i in range(len(seen)) if any(s.startswith(seen[i:]) for s in stops)]
        assert held == max(candidates, key=len, default="")


def test_across_pieces() -> None:
    checker = StopChecker(["<|im_end|>", "\n\nUser:"])
    assert checker.push("Hello <|im_") == ("Hello ", None)
    assert checker.push("start") == ("<|im_start", None)
    assert checker.push("\n\nUs") == ("", None)
    assert checker.matched is None
    assert checker.push("er: more") == ("", "\n\nUser:")
    assert checker.matched == "\n\nUser:"
    assert checker.push("ignored") == ("", "\n\nUser:")
    assert checker.flush() == ""


def test_the_match_may_be_kept() -> None:
    assert stream(StopChecker(["stop"], True), ["a st", "op b"]) == ("a stop", "stop")
    assert stream(StopChecker(["stop"], False), ["a st", "op b"]) == ("a ", "stop")


def test_first_end_then_longest() -> None:
    assert StopChecker(["bc", "abcd"]).push("abcd") == ("a", "bc")
    assert StopChecker(["c", "bc", "abc"]).push("xabc") == ("x", "abc")


def test_flush_gives_back_what_was_held() -> None:
    checker = StopChecker(["abcabd"])
    assert checker.push("xabcab") == ("x", None)
    assert checker.flush() == "abcab"
    assert checker.flush() == ""


def test_no_stops_hold_nothing() -> None:
    checker = StopChecker()
    assert checker.push("anything") == ("anything", None)
    assert checker.flush() == ""


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ("stop", "list"),
        (5, "list"),
        ([""], "non-empty"),
        ([None], "non-empty"),
        (["x"] * (MAX_STOPS + 1), "at most"),
        (["x" * MAX_STOP_CHARS, "y"], "longer"),
    ],
)
def test_bad_stops(stops: object, message: str) -> None:
    with pytest.raises(InvalidParams, match=message):
        StopChecker(stops)  # type: ignore[arg-type]


def test_hostile_stops_cost_no_more() -> None:
    """Quadratic work here would be 10^9 steps."""
    checker = StopChecker(["a" * (MAX_STOP_CHARS - 100) + "b", "a" * 90 + "c"])
    started = time.monotonic()
    shown = sum(len(checker.push("a")[0]) for _ in range(200_000))
    shown += len(checker.push("a" * 200_000)[0]) + len(checker.flush())
    assert shown == 400_000
    assert time.monotonic() - started < 20
