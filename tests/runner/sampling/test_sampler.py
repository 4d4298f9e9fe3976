"""The sampler as the executor uses it: batches, seeds, errors of single rows, cost, state over many steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence
from headrace.errors import InvalidParams
from headrace.runner.sampling.output import NO_TOKEN
from headrace.runner.sampling.state import SampleRow, SeenTokens, SequenceState

Make = Callable[[int], Any]

VOCAB = 2000
STOP = frozenset({0, 1})


def state_of(
    sampler: Any, tokens: tuple[int, ...] = (5, 6, 7), num_prompt: int = 3, seed: int = 0, **options: Any
) -> SequenceState:
    return sampler.start(NewSequence(SamplingParams(**options), tokens, num_prompt, seed, STOP))


def random_logits(rows: int, vocab_size: int = VOCAB, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


# One of every path, and of every edit on a greedy and on a sampled row.
EVERY_KIND: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 0.0, "repetition_penalty": 1.4},
    {"temperature": 0.0, "logit_bias": {3: 50.0}},
    {"temperature": 0.0, "min_tokens": 4},
    {"temperature": 0.0, "allowed_token_ids": (9, 10, 11)},
    {"temperature": 0.0, "bad_words": ((0, 1, 2, 9), (1, 8), (5,))},
    {},
    {"temperature": 0.5, "logprobs": 0},
    {"min_p": 0.1, "presence_penalty": 1.0},
    {"top_p": 0.3},
    {"bad_words": ((0, 7), (2, 3, 1), (9,)), "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"top_p": 0.95, "min_p": 0.001},
    {"top_p": 0.999, "temperature": 2.0, "banned_token_ids": (1, 2, 3)},
    {"top_k": 1},
    {"top_k": 40, "top_p": 0.9, "logprobs": 5},
    {"top_k": 64},
    {"top_k": 200, "frequency_penalty": 0.5},
    {"top_k": 1500, "top_p": 0.99},
    {"top_k": 40, "logit_bias": {7: 9.0}, "allowed_token_ids": tuple(range(100))},
]


# ---- Independence of the batch ----


def test_a_row_gets_the_same_in_any_batch(make_sampler: Make) -> None:
    count = 3 * len(EVERY_KIND)
    sampler = make_sampler(VOCAB)
    rows = [
        SampleRow(state_of(sampler, tokens=(5, 6, 7, *range(seed % 5)), seed=seed, **options))
        for seed, options in enumerate(EVERY_KIND * 3)
    ]
    logits = random_logits(count)
    logits[::4] = logits[::4].round()  # ties
    alone = [make_sampler(VOCAB).sample(logits[index : index + 1], [row]) for index, row in enumerate(rows)]
    tokens = [output.tokens[0] for output in alone]
    logprobs = [output.logprobs[0] if output.logprobs else None for output in alone]
    assert NO_TOKEN not in tokens
    random = np.random.default_rng(1)
    for trial in range(12):
        picked = random.permutation(count)[: count if trial < 4 else random.integers(2, count)].tolist()
        got = sampler.sample(logits[picked], [rows[index] for index in picked])
        assert got.tokens == [tokens[index] for index in picked]
        assert list(got.logprobs or [None] * len(picked)) == [logprobs[index] for index in picked]


def test_the_same_sequence_gives_the_same_tokens_after_a_restart(make_sampler: Make) -> None:
    logits = random_logits(8, seed=3)

    def run(break_at: int) -> list[int]:
        tokens: tuple[int, ...] = (4, 4, 8)
        options: dict[str, Any] = {"temperature": 1.5, "top_k": 300, "repetition_penalty": 1.2}
        sampler = make_sampler(VOCAB)
        state = state_of(sampler, tokens=tokens, seed=77, **options)
        for step in range(8):
            if step == break_at:  # as after preemption: all that is known is in the tokens
                sampler = make_sampler(VOCAB)
                state = state_of(sampler, tokens=tokens, seed=77, **options)
            (token,) = sampler.sample(logits[step : step + 1], [SampleRow(state)]).tokens
            state.extend((token,))
            tokens += (token,)
        return list(tokens[3:])

    assert run(-1) == run(1) == run(5)


def test_seeds_and_positions_make_the_difference(make_sampler: Make) -> None:
    sampler = make_sampler(VOCAB)
    logits = random_logits(1, spread=0.1)

    def token(seed: int, length: int) -> int:
        tokens = (1,) * (2 + length)
        return sampler.sample(logits, [SampleRow(state_of(sampler, tokens, 2, seed))]).tokens[0]

    assert token(1, 0) == token(1, 0)
    assert len({token(seed, 0) for seed in range(50)}) > 40
    assert len({token(1, length) for length in range(50)}) > 40


@pytest.mark.parametrize("options", EVERY_KIND, ids=str)
def test_the_callers_logits_are_not_changed(make_sampler: Make, options: dict[str, Any]) -> None:
    sampler = make_sampler(VOCAB)
    logits = random_logits(2)
    before = logits.clone()
    sampler.sample(logits, [SampleRow(state_of(sampler, **options)) for _ in range(2)])
    assert torch.equal(logits, before)


# ---- Errors ----


@pytest.mark.parametrize(
    ("fill", "where", "text"),
    [
        (math.nan, 17, "NaN"),
        (math.nan, slice(None), "NaN"),
        (math.inf, 17, "infinite"),
        (math.inf, slice(None), "infinite"),
        (-math.inf, slice(None), "finite logit"),
    ],
)
def test_a_bad_row_fails_alone(make_sampler: Make, fill: float, where: int | slice, text: str) -> None:
    sampler = make_sampler(VOCAB)
    kinds = [options for options in EVERY_KIND for _ in range(2)]
    rows = [SampleRow(state_of(sampler, seed=seed, **options)) for seed, options in enumerate(kinds)]
    logits = random_logits(len(rows))
    good = sampler.sample(logits, rows)
    assert good.errors == {}
    bad = list(range(0, len(rows), 2))
    logits[bad, where] = fill
    got = sampler.sample(logits, rows)
    assert sorted(got.errors) == bad
    assert all(text in got.errors[row] for row in bad)
    assert [got.tokens[row] for row in bad] == [NO_TOKEN] * len(bad)
    assert got.tokens[1::2] == good.tokens[1::2]
    assert got.logprobs is not None and good.logprobs is not None
    assert got.logprobs[1::2] == good.logprobs[1::2]
    assert set(got.logprobs[0::2]) == {None}


def test_a_plain_greedy_batch_with_bad_rows(make_sampler: Make) -> None:
    sampler = make_sampler(4)
    rows = [SampleRow(state_of(sampler, tokens=(1,), num_prompt=1, temperature=0.0)) for _ in range(3)]
    logits = torch.tensor([[0.0, 1, 2, math.nan], [0.0, 5, 1, 1], [-math.inf] * 4])
    got = sampler.sample(logits, rows)
    assert got.tokens == [NO_TOKEN, 1, NO_TOKEN]
    assert sorted(got.errors) == [0, 2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masks_that_leave_no_token_fail_that_row(make_sampler: Make, temperature: float) -> None:
    sampler = make_sampler(VOCAB)
    nothing = {"allowed_token_ids": (3, 4), "banned_token_ids": (4, 3), "temperature": temperature}
    only_stop = {"allowed_token_ids": (0, 1), "min_tokens": 2, "temperature": temperature}
    plain = {"temperature": 0.0}
    rows = [SampleRow(state_of(sampler, **options)) for options in (nothing, {}, only_stop, plain)]
    got = sampler.sample(random_logits(4), rows)
    assert sorted(got.errors) == [0, 2]
    assert all("leave no token" in text for text in got.errors.values())
    assert [token == NO_TOKEN for token in got.tokens] == [True, False, True, False]


def test_wrong_shapes_and_types_raise(make_sampler: Make) -> None:
    sampler = make_sampler(VOCAB)
    row = SampleRow(state_of(sampler))
    for logits in (random_logits(2), random_logits(1, VOCAB - 1), random_logits(1).double()):
        with pytest.raises(ValueError, match="expected"):
            sampler.sample(logits, [row])
    assert sampler.sample(torch.empty(0, VOCAB), []).tokens == []


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_token_ids": (VOCAB,)},
        {"banned_token_ids": (VOCAB,)},
        {"logit_bias": {VOCAB: 1.0}},
        {"stop_token_ids": (VOCAB,)},
    ],
    ids=str,
)
def test_token_ids_outside_the_vocabulary_are_refused(make_sampler: Make, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams, match=str(VOCAB)):
        state_of(make_sampler(VOCAB), **options)


def test_stop_and_prompt_ids_outside_the_vocabulary_are_ignored(make_sampler: Make) -> None:
    sampler = make_sampler(10)
    params = SamplingParams(temperature=0.0, min_tokens=1, repetition_penalty=2.0)
    new = NewSequence(params, (2, 10, 500, 11), 2, 0, frozenset({10, 3}))
    logits = torch.full((2, 10), -50.0)
    logits[:, 4] = 1.0
    assert sampler.sample(logits, [SampleRow(sampler.start(new), (12,))] * 2).tokens == [4, 4]


# ---- min_tokens, speculation, penalties over many steps ----


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}], ids=str)
def test_stop_ids_are_banned_before_min_tokens(make_sampler: Make, options: dict[str, Any]) -> None:
    sampler = make_sampler(VOCAB)
    logits = random_logits(1)
    logits[0, 0] = 60.0
    logits[0, 1] = 60.0
    state = state_of(sampler, min_tokens=3, **options)
    for step in range(6):
        (token,) = sampler.sample(logits, [SampleRow(state)]).tokens
        assert (token in STOP) == (step >= 3)
        state.extend((token,))


@pytest.mark.parametrize("options", EVERY_KIND, ids=str)
def test_rows_after_assumed_tokens_equal_single_steps(make_sampler: Make, options: dict[str, Any]) -> None:
    draft = (8, 5, 8, 8)
    logits = random_logits(len(draft) + 1, seed=9)
    logits[:, 8] = 1.0 + logits.max()  # the best token, until it has been put out and is penalised
    sampler = make_sampler(VOCAB)
    state = state_of(sampler, seed=5, **options)
    rows = [SampleRow(state, draft[:length]) for length in range(len(draft) + 1)]
    together = sampler.sample(logits, rows)
    again = sampler.sample(logits, rows)
    assert together == again
    one_by_one = []
    for step in range(len(draft) + 1):
        one_by_one += sampler.sample(logits[step : step + 1], [SampleRow(state)]).tokens
        state.extend(draft[step : step + 1])
    assert together.tokens == one_by_one


def test_counts_kept_over_many_steps_equal_counts_from_scratch() -> None:
    vocab_size = 300
    params = SamplingParams(repetition_penalty=1.1, presence_penalty=0.4, frequency_penalty=0.2)
    random = np.random.default_rng(5)
    prompt = random.integers(0, vocab_size, 40).tolist()
    kept = SeenTokens(params, prompt, vocab_size)
    output: list[int] = []
    for _ in range(60):
        emitted = random.zipf(1.3, random.integers(1, 12)).tolist()
        emitted = [token % (vocab_size + 3) for token in emitted]  # some are outside the vocabulary
        kept.add(emitted)
        output += emitted
        fresh = SeenTokens(params, prompt, vocab_size)
        fresh.add(output)
        expected = {
            token: np.float32(0.2 * output.count(token) + 0.4 * (token in output))
            for token in {*prompt, *output}
            if token < vocab_size
        }
        for seen in (kept, fresh):
            ids, amounts = seen.entries()
            assert len(set(ids.tolist())) == len(ids)
            assert dict(zip(ids.tolist(), amounts, strict=True)) == expected
        assumed = [output[0], vocab_size - 1, vocab_size - 1, vocab_size + 50]
        ids, amounts = kept.entries(assumed)
        fresh.add(assumed)
        fresh_ids, fresh_amounts = fresh.entries()
        assert dict(zip(ids, amounts, strict=True)) == dict(zip(fresh_ids, fresh_amounts, strict=True))


def test_penalties_move_greedy_choices_as_they_grow(make_sampler: Make) -> None:
    sampler = make_sampler(5)
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5)
    state = sampler.start(NewSequence(params, (4,), 1, 0, frozenset()))
    logits = torch.tensor([[0.0, 1.2, 1.0, -3.0, 0.1]])
    tokens = []
    for _ in range(6):
        (token,) = sampler.sample(logits, [SampleRow(state)]).tokens
        state.extend((token,))
        tokens.append(token)
    # 1.2, then 1.0 > 0.7, then 0.7 > 0.5, then 0.5 > 0.2, then 0.2 > 0.1, then 0.1 > 0.0 (token 4 is prompt only)
    assert tokens == [1, 2, 1, 2, 1, 4]


def test_logit_bias_forces_and_forbids(make_sampler: Make) -> None:
    sampler = make_sampler(VOCAB)
    logits = random_logits(2, spread=1.0)
    best = int(logits[1].argmax())
    rows = [
        SampleRow(state_of(sampler, logit_bias={"77": 100})),
        SampleRow(state_of(sampler, temperature=0.0, logit_bias={best: -100.0})),
    ]
    got = sampler.sample(logits, rows).tokens
    assert got[0] == 77
    assert got[1] == int(logits[1].topk(2).indices[1])
