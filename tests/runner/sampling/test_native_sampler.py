"""The native sampler against the torch one on large vocabularies, alone, in a batch and on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence
from headrace.runner.sampling.randomness import noise
from headrace.runner.sampling.sampler import Sampler
from headrace.runner.sampling.state import SampleRow, SequenceState
from tests import needs
from tests.runner.sampling.plain_draw import plain_token
from tests.runner.sampling.test_sampler import EVERY_KIND

_native = needs.native()

from headrace.runner.sampling.native import NativeSampler  # noqa: E402 (needs the extension)

VOCABS = (1, 255, 32_003)
PINNED = [400, 936, 487, 56, 973, 885, 866, 156, 455, 93]
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


def test_the_noise_is_that_of_the_plain_formula() -> None:
    random = np.random.default_rng(3)
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), *random.integers(-(2**63), 2**63 - 1, 200).tolist()]
    positions = [0, 2**31, 2**62 - 1, 7, 1, *random.integers(0, 2**62, 200).tolist()]
    tokens = random.integers(0, 2**31, len(seeds))
    got = [
        _native.gumbel(seed % 2**64, position, token)
        for seed, position, token in zip(seeds, positions, tokens.tolist(), strict=True)
    ]
    assert got == pytest.approx(noise(seeds, positions, tokens[:, None])[:, 0].tolist(), rel=1e-13, abs=1e-13)


# ---- The draw takes few logarithms: against the sum of logit and noise of every token ----

DRAWS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.01},
    {"temperature": 30.0},
    {"min_p": 0.2},
    {"top_k": 50},
    {"top_k": 3000, "min_p": 1e-4},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 2.0},
    {"top_p": 0.97, "min_p": 0.001},
    {"top_k": 700, "top_p": 0.8},
]


def shapes_of_logits(vocab_size: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(vocab_size)
    normal = random.standard_normal(vocab_size, dtype=np.float32)
    one = np.full(vocab_size, -8.0, dtype=np.float32)
    one[vocab_size // 3] = 2.0
    masked = normal.copy()
    masked[random.random(vocab_size) < 0.99] = -np.inf
    masked[vocab_size - 1] = 0.5
    ties = np.round(normal * 2) / 2
    return {
        "flat": np.zeros(vocab_size, dtype=np.float32),
        "normal": normal,
        "peaked": normal * 8,
        "one high": one,
        "masked": masked,
        "ties": ties,
        "large": normal * np.float32(1e30),
        "rising": np.linspace(-20, 0, vocab_size, dtype=np.float32),
    }


@pytest.mark.parametrize("vocab_size", [1, 6, 259, 5003, pytest.param(128_256, marks=pytest.mark.long)])
def test_tokens_are_those_of_the_plain_formula_over_all_tokens(vocab_size: int) -> None:
    samplers = [sampler(vocab_size, name) for name in _native.available_kernels()]
    for logits in shapes_of_logits(vocab_size).values():
        rows, expected = [], []
        for index, options in enumerate(DRAWS * 2):
            params = SamplingParams(**options)
            seed, position = 977 * index - 5000, 2**61 // (index + 1) ** 9
            state = SequenceState(NewSequence(params, (0,), 1, seed, frozenset()), vocab_size)
            state.num_output = position
            rows.append(SampleRow(state))
            # At the edge of top_p the mass may round either way.
            expected.append(
                {plain_token(logits, params, seed, position, slack) for slack in (0.0, 1e-11, -1e-11)}
            )
        tokens = [one.sample(logits[None], rows, [0] * len(rows)).tokens for one in samplers]
        assert all(own == tokens[0] for own in tokens)
        assert all(token in accepted for token, accepted in zip(tokens[0], expected, strict=True))


def test_the_tokens_of_a_seed_never_change() -> None:
    vocab_size = 1000
    logits = (np.sin(np.arange(vocab_size) * 1.7) * 4).astype(np.float32)
    rows = []
    for index, options in enumerate(DRAWS):
        state = SequenceState(
            NewSequence(SamplingParams(**options), (0,), 1, 42 - index, frozenset()), vocab_size
        )
        state.num_output = 10**index
        rows.append(SampleRow(state))
    tokens = sampler(vocab_size).sample(logits[None], rows, [0] * len(rows)).tokens
    assert (
        tokens == Sampler(vocab_size).sample(torch.from_numpy(logits[None].repeat(len(rows), 0)), rows).tokens
    )
    assert tokens == PINNED


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
