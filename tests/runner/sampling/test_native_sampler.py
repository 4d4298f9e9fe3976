"""The native sampler against the torch one on large vocabularies, alone, in a batch and on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence
from headrace.runner.sampling.randomness import uniforms
from headrace.runner.sampling.sampler import Sampler
from headrace.runner.sampling.state import SampleRow, SequenceState
from tests import needs
from tests.runner.sampling.test_sampler import EVERY_KIND

_native = needs.native()

from headrace.runner.sampling.native import NativeSampler  # noqa: E402 (needs the extension)

VOCABS = (1, 255, 32_003)
KINDS = [
    *(
        {name: value for name, value in options.items() if name != "allowed_token_ids"}
        for options in EVERY_KIND
    ),
    {"temperature": 1.3, "top_p": 0.9999},  # most of the vocabulary
    {"top_k": 5000, "top_p": 0.97},
    {"temperature": 1e-3},
    {"top_p": 0.5, "repetition_penalty": 1.3, "frequency_penalty": 0.1},
    {"temperature": 0.7, "top_k": 20, "min_p": 0.05},
]


def sampler(vocab_size: int, kernels: str | None = None, threads: int = 2) -> NativeSampler:
    name = kernels or _native.available_kernels()[0]
    return NativeSampler(vocab_size, _native.Kernels(name), _native.Team(threads))


def rows_of(vocab_size: int, count: int, kinds: list[dict[str, Any]]) -> list[SampleRow]:
    """Every kind `count` times, with seeds, prompts and lengths of output of their own."""
    rows = []
    for index, options in enumerate(kinds * count):
        known = {name: value for name, value in options.items() if vocab_size > 50 or not _names_ids(name)}
        prompt = tuple(token % vocab_size for token in (5, 6, 7, *range(index % 9)))
        new = NewSequence(SamplingParams(**known), prompt, 3, 17 * index - 40, frozenset({0}))
        rows.append(SampleRow(SequenceState(new, vocab_size)))
    return rows


def _names_ids(option: str) -> bool:
    return option in ("bad_words", "banned_token_ids", "logit_bias", "min_tokens")


def logits_of(vocab_size: int, count: int, spread: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, vocab_size), dtype=np.float32) * spread


@pytest.mark.parametrize("vocab_size", VOCABS)
@pytest.mark.parametrize("spread", [0.3, 3.0, 40.0])
def test_tokens_equal_those_of_the_torch_sampler(vocab_size: int, spread: float) -> None:
    rows = rows_of(vocab_size, 4, KINDS)
    logits = logits_of(vocab_size, len(rows), spread)
    logits[::3] = np.round(logits[::3])  # ties
    logits[1::5, vocab_size // 2 :] = -np.inf
    got = sampler(vocab_size).sample(logits, rows)
    expected = Sampler(vocab_size).sample(torch.from_numpy(logits), rows)
    assert got.tokens == expected.tokens
    assert got.errors == expected.errors
    assert got.logprobs is not None and expected.logprobs is not None
    for one, other in zip(got.logprobs, expected.logprobs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (one.token, one.rank) == (other.token, other.rank)
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [(t, r) for t, _, r in one.top] == [(t, r) for t, _, r in other.top]


def test_every_set_and_number_of_threads_gives_the_same_in_any_batch() -> None:
    vocab_size = 32_003
    rows = rows_of(vocab_size, 1, KINDS)
    logits = logits_of(vocab_size, len(rows), 3.0, seed=5)
    expected = sampler(vocab_size, "portable", threads=1).sample(logits, rows)
    for kernels in _native.available_kernels():
        for threads in (1, 2, 3):
            assert sampler(vocab_size, kernels, threads).sample(logits, rows).tokens == expected.tokens
    one = sampler(vocab_size)
    whole = one.sample(logits, rows)
    assert whole.logprobs is not None
    for index, row in enumerate(rows):
        alone = one.sample(logits[index : index + 1], [row])
        assert alone.tokens == [whole.tokens[index]]
        assert (alone.logprobs or (None,)) == (whole.logprobs[index],)
    assert one.sample(logits, rows[::-1], list(range(len(rows)))[::-1]).tokens == whole.tokens[::-1]


def test_logits_may_lie_in_wider_rows() -> None:
    vocab_size = 1000
    wide = logits_of(1024, len(KINDS), 3.0)
    rows = rows_of(vocab_size, 1, KINDS)
    one = sampler(vocab_size)
    assert one.sample(wide[:, :vocab_size], rows) == one.sample(wide[:, :vocab_size].copy(), rows)


def test_scores_are_those_of_the_torch_sampler() -> None:
    vocab_size = 32_003
    logits = logits_of(vocab_size, 6, 3.0)
    targets = [5, 32_002, 0, 17]
    got = sampler(vocab_size).score(logits, 1, targets, 7)
    expected = Sampler(vocab_size).score(torch.from_numpy(logits), 1, targets, 7)
    for one, other in zip(got, expected, strict=True):
        assert (one.token, one.rank) == (other.token, other.rank)
        assert [entry[::2] for entry in one.top] == [entry[::2] for entry in other.top]
        found = [one.logprob, *(entry[1] for entry in one.top)]
        assert found == pytest.approx([other.logprob, *(entry[1] for entry in other.top)], abs=1e-5)


def test_uniforms_are_the_same_bit_for_bit() -> None:
    random = np.random.default_rng(3)
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), *random.integers(-(2**63), 2**63 - 1, 200).tolist()]
    positions = [0, 2**31, 2**62 - 1, 7, 1, *random.integers(0, 2**40, 200).tolist()]
    for stream in (0, 3):
        expected = uniforms(seeds, positions, stream).tolist()
        got = [
            _native.uniform(seed % 2**64, position, stream)
            for seed, position in zip(seeds, positions, strict=True)
        ]
        assert got == expected


def test_what_does_not_fit_is_refused() -> None:
    one = sampler(10)._sampler
    fine = rows_of(10, 1, [{}])
    logits = logits_of(10, 2, 1.0)
    sampler(10).sample(logits, fine * 2)
    rules = [row.state.rules for row in fine]
    ids, amounts = np.array([3, 10]), np.zeros(2, dtype=np.float32)
    with pytest.raises(ValueError, match="row of logits"):
        one.sample(logits, rules, [0], [], None)
    with pytest.raises(ValueError, match="outside the logits"):
        one.sample(logits, rules, [0], [], [2])
    with pytest.raises(ValueError, match="one position"):
        one.sample(logits, rules, [0, 1], [], [0])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        one.sample(logits, rules, [0], [(ids, amounts)], [0])
    with pytest.raises(ValueError, match="another vocabulary"):
        sampler(11)._sampler.sample(logits_of(11, 1, 1.0), rules, [0], [], None)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        one.logprobs(logits, [0], [10], [1])
