"""Masks of grammars: what matchers allow, and that every sampler applies a mask as it does allowed_token_ids."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from llguidance import LLParserLimits

from headrace.core.grammar import Grammar
from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence
from headrace.errors import RequestError
from headrace.runner.sampling import token_masks
from headrace.runner.sampling.state import SampleRow, SequenceState
from headrace.runner.sampling.token_masks import GrammarRunner, Matcher, TokenMasks
from headrace.text.grammar_store import GrammarStore
from headrace.text.tokenizer import Tokenizer
from tests import needs
from tests.places import TALE
from tests.waiting import LONG_S

needs.package("llguidance")

VOCAB = 2048
EOS = 1
WORDS = VOCAB // 32


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TALE)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarRunner:
    return GrammarRunner(GrammarStore(tokenizer, VOCAB, tokenizer.eos_ids))


def new(
    grammar: Grammar | None,
    output: Sequence[int] = (),
    stops: frozenset[int] = frozenset({EOS}),
    **params: Any,
) -> NewSequence:
    return NewSequence(SamplingParams(grammar=grammar, **params), (7, 8, *output), 2, 11, stops)


def started(grammars: GrammarRunner, sequence: NewSequence) -> Matcher:
    matcher = grammars.start(sequence)
    assert matcher is not None
    return matcher


def allowed(matcher: Matcher, position: int = 0, draft: Sequence[int] = ()) -> list[set[int]]:
    bits = np.zeros((len(draft) + 1, WORDS), np.uint32)
    matcher.fill(bits, position, [draft[:count] for count in range(len(draft) + 1)])
    return [set(np.nonzero(row)[0].tolist()) for row in unpacked(bits)]


def unpacked(bits: np.ndarray) -> np.ndarray:
    return np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")


def packed(rows: Sequence[Sequence[int]], vocab: int) -> np.ndarray:
    flags = np.zeros((len(rows), -(-vocab // 32) * 32), np.uint8)
    for row, ids in enumerate(rows):
        flags[row, list(ids)] = 1
    return np.packbits(flags, axis=1, bitorder="little").view(np.uint32)


# ---- Matchers ----


def test_a_grammar_from_its_first_token_to_its_end(grammars: GrammarRunner, tokenizer: Tokenizer) -> None:
    a, b = (tokenizer.encode(letter, add_special_tokens=False)[-1] for letter in "ab")
    matcher = started(grammars, new(Grammar("regex", "a+b")))
    assert all(set(tokenizer.token_bytes(token)) <= {*b"ab"} for token in allowed(matcher)[0])
    assert a in allowed(matcher)[0] and b not in allowed(matcher)[0]
    assert matcher.advance([a]) == 1 and not matcher.done
    assert {a, b} <= allowed(matcher)[0] and EOS not in allowed(matcher)[0]
    assert matcher.advance([b]) == 1 and matcher.done and matcher.error is None
    assert allowed(matcher) == [{EOS}]


def test_what_follows_the_end_is_not_part_of_the_output(
    grammars: GrammarRunner, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("ab", add_special_tokens=False)
    assert started(grammars, new(Grammar("regex", "ab"))).advance([*ids, 99, 98]) == len(ids)


def test_masks_after_a_draft_equal_those_after_its_output(
    grammars: GrammarRunner, tokenizer: Tokenizer
) -> None:
    grammar = Grammar("json_schema", {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}})
    draft = tokenizer.encode('{"a": "yy"', add_special_tokens=False)
    matcher = started(grammars, new(grammar))
    expected = []
    for count in range(len(draft) + 1):
        other = started(grammars, new(grammar, draft[:count]))
        expected += allowed(other)
    assert allowed(matcher, 0, draft) == expected
    assert allowed(matcher, 0, draft) == expected  # and it is where it was before
    wrong = [draft[0], 5, *draft[1:]]
    assert allowed(matcher, 0, wrong)[:2] == expected[:2]
    assert matcher.error is None and allowed(matcher) == expected[:1]


def test_masks_of_branches_are_those_of_each_path(grammars: GrammarRunner, tokenizer: Tokenizer) -> None:
    a, b, c = (tokenizer.encode(text, add_special_tokens=False)[-1] for text in "abc")
    paths: list[tuple[int, ...]] = [(), (a,), (a, b), (a, b, c), (b,), (b, c), (a, c), (5, a), (c,)]
    matcher = started(grammars, new(Grammar("regex", "(ab|ba|bc|c)+[abc]{2}")))
    bits = np.zeros((len(paths), WORDS), np.uint32)
    matcher.fill(bits, 0, paths)
    for path, mask in zip(paths, unpacked(bits), strict=True):
        if path not in [(a, c), (5, a)]:  # the grammar does not allow these
            assert [set(np.nonzero(mask)[0].tolist())] == allowed(matcher, 0, path)[-1:]
    assert matcher.error is None


def test_a_draft_that_reaches_the_end_is_taken_back(grammars: GrammarRunner, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ab", add_special_tokens=False)
    matcher = started(grammars, new(Grammar("regex", "ab")))
    before = allowed(matcher)
    assert allowed(matcher, 0, [*ids, 99])[len(ids)] == {EOS}
    assert allowed(matcher) == before and not matcher.done and matcher.error is None


def test_end_and_stop_ids_are_banned_before_min_tokens(grammars: GrammarRunner, tokenizer: Tokenizer) -> None:
    a = tokenizer.encode("a", add_special_tokens=False)[-1]
    more = started(grammars, new(Grammar("regex", "a+"), [a], min_tokens=3))
    assert EOS not in allowed(more, 2)[0] and EOS in allowed(more, 3)[0]
    stop = started(grammars, new(Grammar("regex", "[ab]+"), stops=frozenset({a}), min_tokens=3))
    assert a not in allowed(stop, 0)[0] and a in allowed(stop, 3)[0]
    ended = started(grammars, new(Grammar("regex", "a"), [a], min_tokens=3))
    assert ended.done and allowed(ended, 1) == [{EOS}]  # nothing else is left


def test_ignored_ends_are_banned_while_other_tokens_are_allowed(
    grammars: GrammarRunner, tokenizer: Tokenizer
) -> None:
    a = tokenizer.encode("a", add_special_tokens=False)[-1]
    assert EOS in allowed(started(grammars, new(Grammar("regex", "a+"), [a])))[0]
    assert EOS not in allowed(started(grammars, new(Grammar("regex", "a+"), [a], ignore_eos=True)))[0]
    assert allowed(started(grammars, new(Grammar("regex", "a"), [a], ignore_eos=True))) == [{EOS}]


def test_output_that_does_not_follow_the_grammar_is_an_error(grammars: GrammarRunner) -> None:
    with pytest.raises(RequestError, match="grammar"):
        grammars.start(new(Grammar("regex", "a+b"), [EOS]))


AMBIGUOUS = Grammar("lark", 'start: e\ne: e e e | e e | "a" | "a" "a" | ("a" e)+\n')


def steps_of(matcher: Matcher, token: int, limit: int) -> int:
    """How many steps a grammar can be followed."""
    for step in range(limit):
        allowed(matcher, step)
        matcher.advance([token])
        if matcher.error is not None:
            return step
    return limit


def test_a_grammar_that_takes_too_long_fails(
    grammars: GrammarRunner, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = tokenizer.encode("a", add_special_tokens=False)[-1]
    matcher = started(grammars, new(AMBIGUOUS))
    count = steps_of(matcher, a, 150)
    assert count < 150 and matcher.error == token_masks.TOO_SLOW and not matcher.done
    monkeypatch.setattr(token_masks, "BURST_S", 1e9)
    assert steps_of(started(grammars, new(AMBIGUOUS)), a, count + 20) == count + 20  # the budget ended it


@pytest.mark.long
def test_a_grammar_exhausted_by_others_is_still_followed(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matchers share a cache up to a limit; the result of one must not depend on the others."""
    monkeypatch.setattr(token_masks, "BURST_S", 1e9)  # nor on how busy the machine is
    runner = GrammarRunner(GrammarStore(tokenizer, VOCAB, tokenizer.eos_ids))
    grammar = Grammar("regex", ".*a.{300}")
    letters = [tokenizer.encode(text, add_special_tokens=False)[-1] for text in ("a", "b", "e")]

    def walk(seed: int, matcher: Matcher) -> tuple[list[set[int]], str | None]:
        rng, seen = random.Random(seed), []
        for step in range(250):
            seen += allowed(matcher, step)
            matcher.advance([rng.choice(letters)])
        return seen, matcher.error

    alone = []
    for seed in range(12):
        single = GrammarRunner(GrammarStore(tokenizer, VOCAB, tokenizer.eos_ids))
        alone.append(walk(seed, started(single, new(grammar))))
    shared = runner._store.get(grammar)
    together = [walk(seed, Matcher(shared, new(grammar), tokenizer.eos_ids)) for seed in range(12)]
    assert shared.worn and runner._store.get(grammar) is not shared
    assert together == alone and all(error is None for _, error in alone)
    shared.cost_s = 1.0  # too dear to begin again
    assert walk(0, Matcher(shared, new(grammar), tokenizer.eos_ids))[1] is not None


def test_what_a_draft_exceeds_is_no_error_of_the_sequence(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "headrace.text.grammars.LIMITS", LLParserLimits(max_items_in_row=60, verbose_errors=False)
    )
    runner = GrammarRunner(GrammarStore(tokenizer, VOCAB, tokenizer.eos_ids))
    many = range(40)  # after "b" a row of the parser would have 5 items for each
    rules = [f'x{i}: y{i} "c"\ny{i}: z{i} "d" | z{i} y{i}\nz{i}: "{i}" | "f" z{i}' for i in many]
    source = "\n".join(['start: "a"+ | "b" e', "e: " + " | ".join(f"x{i}" for i in many), *rules])
    a, b = (tokenizer.encode(letter, add_special_tokens=False)[-1] for letter in "ab")
    grammar = Grammar("lark", source)
    with pytest.raises(RequestError, match="201 items"):
        runner.start(new(grammar, [b]))
    matcher = started(runner, new(grammar))
    state = SequenceState(new(grammar), VOCAB, matcher)
    pending = runner.begin([SampleRow(state, path) for path in ((), (b,), (b, a), (a,))])
    assert pending is not None
    masks = pending.result(LONG_S)
    assert set(masks.errors) == {1, 2, 3} and unpacked(masks.bits)[0].nonzero()[0].tolist() == [a, b]
    assert matcher.error is None and matcher.advance([a]) == 1
    assert allowed(matcher, 1) == [{a, EOS}]


def test_the_time_that_drafts_take_is_not_the_sequences(
    grammars: GrammarRunner, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_masks, "STEP_S", 0.0)
    a = tokenizer.encode("a", add_special_tokens=False)[-1]
    matcher = started(grammars, new(AMBIGUOUS))
    left = matcher._left_s
    bits = np.zeros((81, WORDS), np.uint32)
    paths = [(a,) * count for count in range(81)]
    for _ in range(20):
        if failed := matcher.fill(bits, 0, paths):
            break
    assert failed == list(range(1, 81)) and matcher.error is None and matcher._left_s > left / 2


def test_an_ordinary_grammar_stays_within_its_time(grammars: GrammarRunner, tokenizer: Tokenizer) -> None:
    space = tokenizer.encode('"' + " a" * 40, add_special_tokens=False)
    matcher = started(grammars, new(Grammar("json_schema", {"type": "string"})))
    for step, token in enumerate(space):
        allowed(matcher, step)
        assert matcher.advance([token]) == 1 and matcher.error is None
    assert matcher._left_s > token_masks.BURST_S / 2


def test_the_end_in_a_choice_of_a_larger_vocabulary(tokenizer: Tokenizer) -> None:
    larger = GrammarRunner(GrammarStore(tokenizer, 3000, tokenizer.eos_ids))
    state = SequenceState(new(None), 3000, started(larger, new(Grammar("choice", ["a"]))))
    pending = larger.begin([SampleRow(state)])
    assert pending is not None
    masks = pending.result(LONG_S)
    assert masks.bits.shape == (1, -(-3000 // 32)) and not unpacked(masks.bits)[0, VOCAB:].any()


def test_rows_of_a_batch_get_their_own_masks(grammars: GrammarRunner, tokenizer: Tokenizer) -> None:
    a = tokenizer.encode("a", add_special_tokens=False)[-1]
    first, free, second = (
        SequenceState(sequence, VOCAB, grammars.start(sequence))
        for sequence in (new(Grammar("regex", "a+")), new(None), new(Grammar("choice", ["b"])))
    )
    rows = [SampleRow(first), SampleRow(first, (a,)), SampleRow(free), SampleRow(second)]
    pending = grammars.begin(rows)
    assert pending is not None
    masks = pending.result(LONG_S)
    assert masks.rows == [0, 1, -1, 2] and not masks.errors
    flags = unpacked(masks.bits)
    assert not flags[0, EOS] and flags[1, EOS]
    assert set(np.nonzero(flags[2])[0]) == {tokenizer.encode("b", add_special_tokens=False)[-1]}
    assert grammars.begin([SampleRow(free)]) is None


# ---- Samplers ----

PARAMS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 1.0, "min_p": 0.1, "repetition_penalty": 1.3, "logit_bias": {3: 2.0, 40: -3.0}},
    {"temperature": 0.0, "presence_penalty": 1.0, "banned_token_ids": [2, 9]},
    {"temperature": 1.0, "logprobs": 3},
]


def rows_of(
    grammars: GrammarRunner, vocab: int, allowed_ids: Sequence[Sequence[int] | None], as_mask: bool
) -> list[SampleRow]:
    """One sequence a row, its tokens limited by a grammar, whose mask is given elsewhere, or by its parameters."""
    made = []
    for index, ids in enumerate(allowed_ids):
        params = SamplingParams(seed=index, **PARAMS[index % len(PARAMS)])  # type: ignore[arg-type]
        sequence = NewSequence(params, (3, 4, 5, 6), 2, index, frozenset({EOS}))
        matcher = None
        if ids is not None and as_mask:
            matcher = grammars.start(new(Grammar("json_object")))
        elif ids is not None:
            sequence = replace(sequence, params=replace(params, allowed_token_ids=tuple(ids)))
        made.append(SampleRow(SequenceState(sequence, vocab, matcher)))
    return made


@pytest.mark.parametrize("vocab", [47, 64, 1000])
def test_a_mask_is_applied_as_allowed_token_ids_are(
    grammars: GrammarRunner, make_sampler: Callable[[int], Any], vocab: int
) -> None:
    rng = random.Random(vocab)
    for _ in range(20):
        limits: list[Sequence[int] | None] = []
        for index in range(len(PARAMS) * 2):
            count = rng.choice([1, 3, vocab - 1, vocab])
            limits.append(None if index % 4 == 3 else rng.sample(range(vocab), count))
        logits = torch.randn(
            len(limits) + 2, vocab, generator=torch.Generator().manual_seed(rng.randrange(9999))
        )
        at = rng.sample(range(len(limits) + 2), len(limits))
        limited = [ids for ids in limits if ids is not None]
        where = iter(range(len(limited)))
        masks = TokenMasks(packed(limited, vocab), [-1 if ids is None else next(where) for ids in limits])
        sampler = make_sampler(vocab)
        by_mask = sampler.sample(logits, rows_of(grammars, vocab, limits, True), at, masks)
        by_list = sampler.sample(logits, rows_of(grammars, vocab, limits, False), at)
        assert by_mask.errors == by_list.errors
        assert by_mask.tokens == by_list.tokens
        assert by_mask.logprobs == by_list.logprobs
        free = sampler.sample(logits, rows_of(grammars, vocab, [None] * len(limits), False), at)
        assert free.tokens != by_mask.tokens  # the masks did something


def test_drafts_are_sampled_without_masks(
    grammars: GrammarRunner, make_sampler: Callable[[int], Any]
) -> None:
    limits = [range(5) for _ in range(len(PARAMS))]
    logits = torch.randn(len(limits), 64, generator=torch.Generator().manual_seed(3))
    sampler = make_sampler(64)
    drafted = sampler.sample(logits, rows_of(grammars, 64, limits, True))
    free = sampler.sample(logits, rows_of(grammars, 64, [None] * len(limits), False))
    assert drafted.tokens == free.tokens and not drafted.errors


def test_masks_and_lists_of_allowed_tokens_both_hold(
    grammars: GrammarRunner, make_sampler: Callable[[int], Any]
) -> None:
    params = SamplingParams(temperature=0.0, allowed_token_ids=[1, 2])
    sequence = NewSequence(params, (3, 4), 2, 0, frozenset())
    rows = [
        SampleRow(SequenceState(sequence, 40, grammars.start(new(Grammar("json_object"))))) for _ in range(2)
    ]
    masks = TokenMasks(packed([[2, 3], [3, 39]], 40), [0, 1])
    got = make_sampler(40).sample(torch.arange(80.0).reshape(2, 40).flip(1).contiguous(), rows, None, masks)
    assert got.tokens[0] == 2
    assert "leave no token" in got.errors[1]


def test_ids_past_the_masks_are_not_chosen(
    grammars: GrammarRunner, make_sampler: Callable[[int], Any]
) -> None:
    rows = [
        SampleRow(SequenceState(new(None, temperature=0.0), 100, grammars.start(new(Grammar("json_object")))))
    ]
    masks = TokenMasks(packed([range(32)], 32), [0])
    assert make_sampler(100).sample(torch.arange(100.0)[None], rows, None, masks).tokens == [31]
