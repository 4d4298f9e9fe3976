"""SamplingParams: every field at its bounds, one past them, and with the wrong type."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from headrace.core.params import (
    MAX_BAD_CHARS,
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_TOKEN_LIST,
    MAX_TOKENS_LIMIT,
    SamplingParams,
)
from headrace.errors import InvalidParams

TINY = 5e-324
JUST_OVER_ONE = math.nextafter(1.0, 2.0)
JUST_OVER_TWO = math.nextafter(2.0, 3.0)
JUST_OVER_HUNDRED = math.nextafter(100.0, 200.0)
ENORMOUS = 10**5000  # float() of it overflows and str() of it is refused

FLOATS: dict[str, tuple[list[float], list[float]]] = {  # field: accepted, refused
    "temperature": ([0, 0.0, -0.0, TINY, 1, 100.0], [-TINY, -1, JUST_OVER_HUNDRED, 101]),
    "top_p": ([TINY, 0.5, 1, 1.0], [0, 0.0, -TINY, JUST_OVER_ONE]),
    "min_p": ([0, 0.0, 0.5, 1.0], [-TINY, JUST_OVER_ONE]),
    "repetition_penalty": ([0.01, 1, 100.0], [0, 0.0, TINY, 1e-38, 0.00999, JUST_OVER_HUNDRED]),
    "presence_penalty": ([-2.0, 0, 2], [-JUST_OVER_TWO, JUST_OVER_TWO]),
    "frequency_penalty": ([-2.0, 0, 2], [-JUST_OVER_TWO, JUST_OVER_TWO]),
}
INTS: dict[str, tuple[list[int], list[int]]] = {
    "n": ([1, MAX_N], [0, -1, MAX_N + 1]),
    "top_k": ([-1, 0, 1, MAX_TOKENS_LIMIT], [-2, MAX_TOKENS_LIMIT + 1]),
    "min_tokens": ([0, 1], [-1, MAX_TOKENS_LIMIT + 1]),
    "max_tokens": ([0, 1, MAX_TOKENS_LIMIT], [-1, MAX_TOKENS_LIMIT + 1]),
    "seed": ([0, -MAX_SEED - 1, MAX_SEED], [-MAX_SEED - 2, MAX_SEED + 1]),
    "logprobs": ([0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1]),
    "prompt_logprobs": ([0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1]),
}
FLAGS = ["include_stop_str_in_output", "ignore_eos", "skip_special_tokens"]
ID_LISTS = ["stop_token_ids", "allowed_token_ids", "banned_token_ids"]
MAY_BE_NONE = {"max_tokens", "seed", "logprobs", "prompt_logprobs"}


def test_every_field_is_covered_here() -> None:
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert fields == {
        *FLOATS,
        *INTS,
        *FLAGS,
        *ID_LISTS,
        "stop",
        "logit_bias",
        "bad_words",
        "grammar",
        "output_kind",
    }


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (good, _) in {**FLOATS, **INTS}.items() for value in good]
)
def test_bounds_are_accepted_and_kept(name: str, value: float) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (_, bad) in {**FLOATS, **INTS}.items() for value in bad]
)
def test_one_past_a_bound_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InvalidParams, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, ENORMOUS, -ENORMOUS], ids=lambda v: "big")
@pytest.mark.parametrize("name", [*FLOATS, *INTS])
def test_numbers_that_are_not_finite_or_enormous_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidParams, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    "value",
    ["1", b"1", True, False, [1], {}, (), 1j, object()],
    ids=lambda value: "object" if type(value) is object else repr(value),
)
@pytest.mark.parametrize("name", [*FLOATS, *INTS])
def test_wrong_types_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidParams, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    "kind", [np.float16, np.float32, np.float64, np.int64, Fraction], ids=lambda k: k.__name__
)
@pytest.mark.parametrize("name", FLOATS)
def test_real_numbers_of_other_classes_are_stored_as_floats(name: str, kind: Callable[[int], Any]) -> None:
    value = getattr(SamplingParams(**{name: kind(1)}), name)
    assert (value, type(value)) == (1.0, float)


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint32], ids=lambda k: k.__name__)
@pytest.mark.parametrize("name", INTS)
def test_whole_numbers_of_other_classes_are_stored_as_ints(name: str, kind: Callable[[int], Any]) -> None:
    value = getattr(SamplingParams(**{name: kind(3)}), name)
    assert (value, type(value)) == (3, int)


NUMPY_FAULTS = [
    np.True_,
    np.float32("nan"),
    np.float64("inf"),
    np.complex64(1),
    np.array([1]),
    np.datetime64(1, "s"),
]


@pytest.mark.parametrize("value", NUMPY_FAULTS, ids=repr)
@pytest.mark.parametrize("name", [*FLOATS, *INTS])
def test_numpy_values_that_are_not_numbers_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidParams, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ID_LISTS)
def test_token_ids_of_other_classes_are_stored_as_ints(name: str) -> None:
    for ids in ([1, np.int64(2)], np.array([1, 2], np.uint16)):
        stored = getattr(SamplingParams(**{name: ids}), name)
        assert stored == (1, 2) and set(map(type, stored)) == {int}
    for wrong in (
        [1, np.True_],
        [1, np.float32(2)],
        np.array([-1]),
        np.array([2**40]),
        b"ab",
        bytearray(b"ab"),
    ):
        with pytest.raises(InvalidParams, match=name):
            SamplingParams(**{name: wrong})


def test_bias_tables_and_bad_words_of_other_classes() -> None:
    biased = SamplingParams(logit_bias={np.int64(7): np.float32(0.5), 8: 1}).logit_bias
    assert biased == {7: 0.5, 8: 1.0} and {*map(type, biased), *map(type, biased.values())} == {int, float}
    (word,) = SamplingParams(bad_words=[np.array([3, 4])]).bad_words  # type: ignore[arg-type,list-item]
    assert word == (3, 4) and set(map(type, word)) == {int}


@pytest.mark.parametrize("name", INTS)
def test_whole_numbers_may_not_be_floats(name: str) -> None:
    with pytest.raises(InvalidParams, match=f"{name} must be a whole number"):
        SamplingParams(**{name: 1.0})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*FLOATS, *INTS, *FLAGS])
def test_none_is_for_optional_fields_only(name: str) -> None:
    if name in MAY_BE_NONE:
        assert getattr(SamplingParams(**{name: None}), name) is None
    else:
        with pytest.raises(InvalidParams, match=name):
            SamplingParams(**{name: None})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 1, "true", [], ENORMOUS], ids=["0", "1", "text", "list", "enormous"])
@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: True}), name) is True
    with pytest.raises(InvalidParams, match=f"{name} must be true or false"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_an_engine_may_admit_fewer_alternatives(name: str) -> None:
    params = SamplingParams(**{name: 21})  # type: ignore[arg-type]
    params.check_logprobs(21)
    with pytest.raises(InvalidParams, match=f"^{name} asks for 21 alternatives; at most 20"):
        params.check_logprobs(20)


# ---- Lists ----


@pytest.mark.parametrize("name", ID_LISTS)
def test_token_lists_at_their_bounds(name: str) -> None:
    assert getattr(SamplingParams(**{name: [0, MAX_TOKENS_LIMIT]}), name) == (0, MAX_TOKENS_LIMIT)  # type: ignore[arg-type]
    longest = getattr(SamplingParams(**{name: range(MAX_TOKEN_LIST)}), name)  # type: ignore[arg-type]
    assert longest == tuple(range(MAX_TOKEN_LIST))
    with pytest.raises(InvalidParams, match=f"{name} holds {MAX_TOKEN_LIST + 1} ids"):
        SamplingParams(**{name: range(MAX_TOKEN_LIST + 1)})  # type: ignore[arg-type]


BAD_IDS = [-1, MAX_TOKENS_LIMIT + 1, 1.0, math.nan, "1", None, True, [1], ENORMOUS]


@pytest.mark.parametrize("value", BAD_IDS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("name", ID_LISTS)
def test_bad_token_ids_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidParams, match=name):
        SamplingParams(**{name: [5, value]})


@pytest.mark.parametrize(
    "value", [5, 1.5, "12", b"12", True, {1: 2}, ENORMOUS], ids=lambda v: type(v).__name__
)
@pytest.mark.parametrize("name", ID_LISTS)
def test_values_that_are_not_lists_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidParams, match=f"{name} must be a list"):
        SamplingParams(**{name: value})


def test_an_empty_list_of_allowed_tokens_is_refused_and_none_means_all() -> None:
    assert SamplingParams(allowed_token_ids=None).allowed_token_ids is None
    assert SamplingParams(banned_token_ids=()).banned_token_ids == ()
    assert SamplingParams(stop_token_ids=None).stop_token_ids == ()  # type: ignore[arg-type]
    with pytest.raises(InvalidParams, match="allowed_token_ids must not be empty"):
        SamplingParams(allowed_token_ids=())


def test_stop_strings() -> None:
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop=None).stop == ()  # type: ignore[arg-type]
    longest = "x" * MAX_STOP_STRING_CHARS
    most = ("x" * (MAX_STOP_CHARS // MAX_STOP_STRINGS),) * MAX_STOP_STRINGS
    assert SamplingParams(stop=most).stop == most
    with pytest.raises(InvalidParams, match=f"stop holds {MAX_STOP_CHARS + 1} characters"):
        SamplingParams(stop=(most[0] + "x", *most[1:]))
    assert SamplingParams(stop=(longest,) * 8).stop == (longest,) * 8
    for bad in (
        [longest + "x"],
        [""],
        "",
        ["a"] * (MAX_STOP_STRINGS + 1),
        [1],
        [None],
        [b"a"],
        5,
        True,
        {"a": 1},
    ):
        with pytest.raises(InvalidParams, match="stop"):
            SamplingParams(stop=bad)  # type: ignore[arg-type]


def test_logit_bias_at_its_bounds() -> None:
    bias = {0: -100.0, "17": 100, MAX_TOKENS_LIMIT: 0}
    kept = SamplingParams(logit_bias=bias).logit_bias  # type: ignore[arg-type]
    assert kept == {0: -100.0, 17: 100.0, MAX_TOKENS_LIMIT: 0.0}
    bias["18"] = 1  # the caller's mapping is not ours
    assert kept is not None and 18 not in kept
    assert SamplingParams(logit_bias={}).logit_bias == {}
    assert (
        len(SamplingParams(logit_bias=dict.fromkeys(range(MAX_TOKEN_LIST), 1.0)).logit_bias or ()) == 65_536
    )
    with pytest.raises(InvalidParams, match="logit_bias holds 65537 entries"):
        SamplingParams(logit_bias=dict.fromkeys(range(MAX_TOKEN_LIST + 1), 1.0))


@pytest.mark.parametrize(
    "bias",
    [
        [(1, 2.0)],
        "1",
        5,
        {-1: 1.0},
        {"-1": 1.0},
        {MAX_TOKENS_LIMIT + 1: 1.0},
        {str(MAX_TOKENS_LIMIT + 1): 1.0},
        {"9" * 5000: 1.0},
        {ENORMOUS: 1.0},
        {1.5: 1.0},
        {1.0: 1.0},
        {math.inf: 1.0},
        {math.nan: 1.0},
        {True: 1.0},
        {None: 1.0},
        {"": 1.0},
        {"one": 1.0},
        {" 1": 1.0},
        {"1_0": 1.0},
        {"\u0663": 1.0},
        {b"1": 1.0},
        {1: 1.0, "1": 2.0},
        {1: JUST_OVER_HUNDRED},
        {1: -JUST_OVER_HUNDRED},
        {1: math.nan},
        {1: math.inf},
        {1: ENORMOUS},
        {1: "1"},
        {1: None},
        {1: True},
    ],
    ids=lambda bias: "bias",
)
def test_bad_logit_bias_is_refused(bias: Any) -> None:
    with pytest.raises(InvalidParams, match="logit_bias"):
        SamplingParams(logit_bias=bias)


# ---- Fields together ----


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    assert SamplingParams(min_tokens=MAX_TOKENS_LIMIT, max_tokens=None).max_tokens is None
    with pytest.raises(InvalidParams, match="min_tokens 6 is greater than max_tokens 5"):
        SamplingParams(min_tokens=6, max_tokens=5)


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=-0.0).greedy
    assert not SamplingParams(temperature=TINY).greedy


def test_the_object_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().n = 2  # type: ignore[misc]


@pytest.mark.parametrize("name", [*ID_LISTS, "logit_bias"])
def test_ids_are_checked_against_the_vocabulary(name: str) -> None:
    def params(last: int) -> SamplingParams:
        value: Any = {last: 1.0, 3: 1.0} if name == "logit_bias" else (last, 3)
        return SamplingParams(**{name: value})

    params(99).check_vocab(100)
    SamplingParams().check_vocab(1)
    with pytest.raises(InvalidParams, match=f"{name} .*100"):
        params(100).check_vocab(100)


@pytest.mark.parametrize("value", [ENORMOUS, "x" * 10_000, [0] * 10_000], ids=lambda v: type(v).__name__)
def test_messages_stay_one_short_sentence(value: Any) -> None:
    for name in ("temperature", "n", "seed", "ignore_eos", "logit_bias"):
        with pytest.raises(InvalidParams) as caught:
            SamplingParams(**{name: value})
        text = str(caught.value)
        assert len(text) < 250
        assert "\n" not in text
        assert caught.value.status == 400


@pytest.mark.parametrize(
    "words",
    [
        "fox", 7, ["a"] * (MAX_BAD_WORDS + 1), ["a" * (MAX_BAD_WORD_CHARS + 1)], [""], [" "], [[]], [[-1]], [["a"]],
        ["a" * 1000] * (MAX_BAD_CHARS // 1000 + 1), [[1] * (MAX_TOKEN_LIST + 1)], [True], [[True]], [1.5],
    ],
    ids=range(14),
)  # fmt: skip
def test_invalid_lists_of_bad_words(words: Any) -> None:
    with pytest.raises(InvalidParams, match="bad_words"):
        SamplingParams(bad_words=words)


@pytest.mark.parametrize("word", ["\n", " ", "\t\n "])
def test_a_bad_word_of_white_space_is_refused_as_such(word: str) -> None:
    said = f"bad_words holds {word!r}: white space alone cannot be forbidden as text"
    with pytest.raises(InvalidParams, match=re.escape(said)):
        SamplingParams(bad_words=(word,))
    with pytest.raises(InvalidParams, match="must be text of 1 to 1024 characters, got ''"):
        SamplingParams(bad_words=("",))


def test_bad_words_outside_the_vocabulary() -> None:
    with pytest.raises(InvalidParams, match="bad_words names token 9"):
        SamplingParams(bad_words=((1, 2), (9, 3))).check_vocab(9)


FAULTY_LISTS: list[tuple[dict[str, Any], str]] = [
    ({"stop_token_ids": [1, True]}, "each of stop_token_ids must be a whole number, got True"),
    ({"allowed_token_ids": [1, 2.0]}, "each of allowed_token_ids must be a whole number, got 2.0"),
    ({"banned_token_ids": [3, -1]}, "each of banned_token_ids must be between 0 and 2147483647, got -1"),
    ({"allowed_token_ids": [0, 2**31]}, "each of allowed_token_ids must be between 0 and 2147483647"),
    ({"bad_words": [[1, "a"]]}, "each token id of bad_words must be a whole number, got 'a'"),
    ({"logit_bias": {"1": 1, "01": 1}}, "logit_bias names token 1 twice"),
    ({"logit_bias": {"1": 1, 1: 1}}, "logit_bias names token 1 twice"),
    ({"logit_bias": {"1": 1, "²": 1}}, "logit_bias keys must be token ids, got '²'"),
    ({"logit_bias": {"1": 1, "": 1}}, "logit_bias keys must be token ids, got ''"),
    ({"logit_bias": {"0" * 21: 1}}, "logit_bias keys must be token ids"),
    ({"logit_bias": {True: 1}}, "logit_bias keys must be token ids, got True"),
    ({"logit_bias": {"1": 1, "-1": 1}}, "each logit_bias token id must be between 0 and 2147483647, got -1"),
    ({"logit_bias": {"9" * 20: 1}}, "each logit_bias token id must be between 0 and 2147483647"),
    ({"logit_bias": {1: 1, 2: True}}, "each logit_bias value must be a number, got True"),
    ({"logit_bias": {1: float("nan"), 2: 1}}, "each logit_bias value must be between -100 and 100, got nan"),
    ({"logit_bias": {1: 1, 2: float("nan")}}, "each logit_bias value must be between -100 and 100, got nan"),
    ({"logit_bias": {1: 1.5, 2: 10**400}}, "each logit_bias value must be between -100 and 100"),
]


@pytest.mark.parametrize(("given", "said"), FAULTY_LISTS)
def test_a_fault_in_a_long_list_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParams, match=re.escape(said)):
        SamplingParams(**given)


def test_bias_tables_keep_their_order_and_values() -> None:
    table = {"7": 1, "03": -100, "0": 0.5}
    assert SamplingParams(logit_bias=table).logit_bias == {7: 1.0, 3: -100.0, 0: 0.5}  # type: ignore[arg-type]
    mixed = SamplingParams(logit_bias={"7": 1, 3: 2})  # type: ignore[dict-item]
    assert list((mixed.logit_bias or {}).items()) == [(7, 1.0), (3, 2.0)]
    assert SamplingParams(logit_bias={}).logit_bias == {}
