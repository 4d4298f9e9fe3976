"""Patterns of configs: what `re` matches, in time that no pattern can stretch."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UnsupportedModel
from headrace.models.quantized.patterns import MAX_LENGTH, matches

NAMES = [
    "",
    "lm_head",
    "model.layers.0.self_attn.q_proj",
    "model.layers.12.mlp.down_proj",
    "model.layers.3.mlp.gate",
]
PATTERNS = [
    ".*", "lm_head", ".*lm_head", r".*self_attn\.(q|k|v)_proj$", r"model\.layers\.\d+\.mlp\..*",
    r".*layers\.(1|2)\d?\.",
    r"^model.*gate$", r"[a-z_.]+\d{1,2}[^q]*$", r"(?:model|lm)_?.*head", r".*\.[1-9]{2}\..*", "", "()", "(a|)*b?",
    r"\w+$",
    r"(.*\.)?mlp.(gate|up|down)_proj", r".*[-a.]", r"m{1}o{0,3}d{1,}", "[]a]", "x*?$|.+?h",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_as_re_matches(pattern: str) -> None:
    for name in NAMES:
        assert matches(pattern, name) is (re.match(pattern, name) is not None), name


_ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", "^", "$"])
_TREES = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda both: f"({both[0]}|{both[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?"])).map(
            lambda both: f"(?:{both[0]}){both[1]}"
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(_TREES, st.text("ab1", max_size=7))
def test_random_patterns(pattern: str, name: str) -> None:
    assert matches(pattern, name) is (re.match(pattern, name) is not None)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "not well-formed"), ("a)", "not well-formed"), ("*", "not well-formed"), ("[a", "not well-formed"),
        ("a{3,1}", "not well-formed"), ("a{x}", "not well-formed"), ("a{2", "not well-formed"),
        ("\\", "not well-formed"),
        ("(?!a)b", "without a colon"), ("(?P<n>a)", "without a colon"), (r"(a)\1", r"holds \\1"),
        (r"\b", "not supported"),
        ("(" * 99 + "a" + ")" * 99, "nested too deeply"), ("((a{99}){99}){99}", "too large"), ("(){9999}", "too large"),
        ("a" * (MAX_LENGTH + 1), "longer than"),
    ],
)  # fmt: skip
def test_refused(pattern: str, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words) as caught:
        matches(pattern, "aaa")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(.*.*.*.*.*)*b", "(a*)*(a*)*b", "a?" * 200 + "a" * 50 + "b"]
)
def test_no_pattern_backtracks(pattern: str) -> None:
    """In `re` each of these would take longer than the test may."""
    assert not matches(pattern, "a" * 60)
