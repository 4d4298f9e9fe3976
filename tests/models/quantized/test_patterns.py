"""Patterns of configs: what `re` matches, in time that no pattern can stretch."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.quantized.compressed import read_compressed
from headrace.models.quantized.fp8 import read_fp8
from headrace.models.quantized.patterns import MAX_LENGTH, matches
from tests.work import growth, lines_run

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


def test_the_names_of_a_mixture_take_few_lines_a_character() -> None:
    """All of its experts are looked up in every pattern."""
    names = [f"model.layers.{at % 9}.mlp.experts.{at}.up_proj" for at in range(100)]
    pattern = r".*\.mlp\.(gate|up|gate_up|down)_proj.*"
    work = lines_run(lambda: [matches(pattern, name) for name in names])
    assert work < 12 * sum(map(len, names))


def _look_up_groups(count: int) -> None:
    """As many modules as the config has targets, as folders have them that `headrace quantize --method auto` wrote."""
    modules = [f"model.layers.0.mlp.experts.{at}.up_proj" for at in range(count)]
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    group = {"targets": modules, "weights": weights, "format": "pack-quantized"}
    method = read_compressed(ConfigReader({"config_groups": {"one": group}, "ignore": modules[:1]}))
    assert [method.layout(module) is None for module in modules] == [True] + [False] * (count - 1)


def _look_up_exceptions(count: int) -> None:
    excluded = [f"layers.{at}.mlp.gate" for at in range(count)]
    method = read_fp8(ConfigReader({"modules_to_not_convert": [*excluded, "visual"]}))
    assert all(method.layout(f"model.{one}") is None for one in excluded)
    assert method.layout("model.visual.up_proj") is None
    assert method.layout("model.layers.1.mlp.gate_proj") is not None


@pytest.mark.parametrize("look_up", [_look_up_groups, _look_up_exceptions])
def test_work_grows_with_the_modules_and_not_with_their_square(look_up: Callable[[int], None]) -> None:
    assert growth(look_up, 50) < 6
