"""Bad words: tokens that would complete one are banned, by every sampler, in any batch, and after drafts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence
from headrace.runner.sampling.bad_words import BadWords
from headrace.runner.sampling.output import NO_TOKEN, NOTHING_LEFT
from headrace.runner.sampling.state import Draw, SampleRow, SequenceState

Make = Callable[[int], Any]
Words = tuple[tuple[int, ...], ...]

VOCAB = 8
WORDS: Words = ((3,), (1, 2), (2, 2, 4), (5, 1, 1))
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.1},
]


def naive(words: Words, output: Sequence[int]) -> set[int]:
    """vLLM's rule, word by word."""
    return {word[-1] for word in words if list(output[len(output) - len(word) + 1 :]) == list(word[:-1])}


def holds(words: Words, output: Sequence[int]) -> bool:
    return any(output[at : at + len(word)] == word for word in words for at in range(len(output)))


def state_of(
    sampler: Any, output: tuple[int, ...] = (), prompt: tuple[int, ...] = (1,), **options: Any
) -> SequenceState:
    seed = options.pop("seed", 0)
    new = NewSequence(SamplingParams(**options), (*prompt, *output), len(prompt), seed, frozenset())
    state: SequenceState = sampler.start(new)
    return state


def test_banned_tokens_equal_a_search() -> None:
    picked = random.Random(0)
    found = 0
    for _ in range(500):
        words = tuple(
            tuple(picked.randrange(3) for _ in range(picked.randint(2, 5)))
            for _ in range(picked.randint(1, 8))
        )
        output = tuple(picked.randrange(3) for _ in range(picked.randrange(12)))
        cut, split = picked.randint(0, len(output)), picked.randint(0, len(output))
        state = BadWords(words, output[: min(cut, split)])
        state.add(output[min(cut, split) : max(cut, split)])
        banned = set(state.banned(output[max(cut, split) :]))
        assert banned == naive(words, output)
        found += bool(banned)
    assert found > 100


@pytest.mark.parametrize("kind", KINDS)
def test_no_bad_word_occurs_in_any_batch(make_sampler: Make, kind: dict[str, Any]) -> None:
    """Forty tokens of nine sequences, four of them with bad words, one by one and all together."""
    logits = torch.randn(40, 9, VOCAB, generator=torch.Generator().manual_seed(7)) * 2
    logits[:, :, 1:3] += 2.5  # so that words would come

    def run(rows: Sequence[int], words: Words) -> list[tuple[int, ...]]:
        sampler = make_sampler(VOCAB)
        states = [state_of(sampler, seed=row, bad_words=words if row % 2 else (), **kind) for row in rows]
        outputs: list[tuple[int, ...]] = [() for _ in rows]
        for step in logits:
            got = sampler.sample(step[list(rows)].contiguous(), [SampleRow(state) for state in states])
            assert not got.errors
            for index, token in enumerate(got.tokens):
                outputs[index] += (token,)
                states[index].extend((token,))
        return outputs

    all_rows = range(9)
    free, held = run(all_rows, ()), run(all_rows, WORDS)
    assert all(holds(WORDS, free[row]) for row in (1, 3, 5, 7))
    assert not any(holds(WORDS, held[row]) for row in (1, 3, 5, 7))
    assert [held[row] for row in (0, 2, 4, 6, 8)] == [free[row] for row in (0, 2, 4, 6, 8)]
    for row in all_rows:
        assert run([row], WORDS) == [held[row]]


def test_after_a_draft_and_after_preemption(make_sampler: Make) -> None:
    sampler = make_sampler(VOCAB)
    logits = torch.zeros(1, VOCAB)
    logits[0, 4], logits[0, 6] = 5.0, 4.0

    def token(state: SequenceState, assumed: tuple[int, ...] = ()) -> int:
        found: int = sampler.sample(logits, [SampleRow(state, assumed)]).tokens[0]
        return found

    options: dict[str, Any] = {"temperature": 0.0, "bad_words": WORDS}
    state = state_of(sampler, **options)
    assert token(state) == 4 and token(state, (2,)) == 4
    assert token(state, (2, 2)) == 6  # 4 would complete (2, 2, 4)
    assert token(state, (2, 2, 7)) == 4
    state.extend((0, 2))
    assert token(state) == 4 and token(state, (2,)) == 6
    assert token(state_of(sampler, output=(0, 2, 2), **options)) == 6
    assert token(state_of(sampler, prompt=(0, 2, 2), **options)) == 4  # prompts do not count


def test_where_no_token_is_left(make_sampler: Make) -> None:
    sampler = make_sampler(4)
    words = tuple((0, last) for last in range(4))
    rows = [SampleRow(state_of(sampler, output=(0,), bad_words=words)), SampleRow(state_of(sampler))]
    got = sampler.sample(torch.zeros(2, 4), rows)
    assert got.errors == {0: NOTHING_LEFT} and got.tokens[0] == NO_TOKEN and got.tokens[1] != NO_TOKEN


def test_without_bad_words_nothing_is_searched(make_sampler: Make) -> None:
    sampler = make_sampler(VOCAB)
    plain = state_of(sampler, temperature=0.0)
    assert plain.bad_words is None and not plain.follows_output and plain.draw is Draw.GREEDY
    single = state_of(sampler, temperature=0.0, bad_words=((3,),))
    assert single.bad_words is None and not single.follows_output and single.banned == (3,)
    assert single.draw is Draw.EDITED
    longer = state_of(sampler, temperature=0.0, bad_words=WORDS)
    assert longer.follows_output and longer.draw is Draw.EDITED
