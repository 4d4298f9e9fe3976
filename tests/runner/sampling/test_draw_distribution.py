"""The native draw follows its distribution with every filter, and the test notices noise that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence
from headrace.runner.sampling.randomness import halves, philox4x32
from headrace.runner.sampling.state import SequenceState
from tests import needs
from tests.runner.sampling.plain_draw import chi_square_excess, kept_tokens, probabilities, scaled

_native = needs.native()

from headrace.runner.sampling.native import NativeSampler  # noqa: E402 (needs the extension)

VOCAB, DRAWS = 50, 100_000
SEEDS = (0, 12345, -(2**62))
FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 5, "temperature": 0.1},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "top_k and top_p": {"top_k": 30, "top_p": 0.9, "temperature": 1.3},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
}
LOGITS = np.random.default_rng(2).permutation(np.linspace(-2.0, 2.0, VOCAB)).astype(np.float32)
PROMPT, OUTPUT = (3, 4, 17, 30), (5, 17, 5)


def native_tokens(params: SamplingParams, seed: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Tokens [DRAWS] at positions 0, 1, ... of one sequence, and the logits [VOCAB] after its penalties."""
    sampler = NativeSampler(VOCAB, _native.Kernels(_native.available_kernels()[0]), _native.Team(1))
    state = SequenceState(NewSequence(params, PROMPT + OUTPUT, len(PROMPT), seed, frozenset()), VOCAB)
    seen = state.subtracted()
    rules = [sampler._rules(state)] * DRAWS
    tokens, faults = sampler._sampler.sample(
        LOGITS[None], rules, list(range(DRAWS)), [seen] * DRAWS if seen else [], [0] * DRAWS
    )
    assert not faults
    edited = LOGITS.copy()
    if seen:
        ids, amounts = seen
        penalty = np.float32(params.repetition_penalty)
        edited[ids] = np.where(edited[ids] > 0, edited[ids] / penalty, edited[ids] * penalty) - amounts
    return np.array(tokens), edited


@pytest.mark.parametrize(
    "seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[1:])]
)
@pytest.mark.parametrize("name", FILTERS)
def test_draws_follow_the_distribution(name: str, seed: int) -> None:
    params = SamplingParams(**FILTERS[name])
    tokens, edited = native_tokens(params, seed)
    shares = probabilities(edited, params)
    assert (shares > 0).sum() >= 5
    assert chi_square_excess(tokens, shares) < 1.0


def test_draws_at_neighbouring_positions_are_independent() -> None:
    tokens, edited = native_tokens(SamplingParams(), 7)
    shares = probabilities(edited, SamplingParams())
    pairs = tokens[:-1:2] // 5 * 10 + tokens[1::2] // 5
    tens = shares.reshape(-1, 5).sum(-1)
    assert chi_square_excess(pairs, np.outer(tens, tens).ravel()) < 1.0


# ---- The test's own strength: plain arg-max in NumPy, with the right noise and with wrong ones ----

Words = NDArray[np.uint64]


def noise_words(seed: int, draws: int) -> Words:
    """[draws, VOCAB] words of the mapping."""
    positions = [half[:, None] for half in halves(np.arange(draws))]
    seeds = [half[:, None] for half in halves([seed])]
    blocks = np.arange(-(-VOCAB // 4), dtype=np.uint64)[None]
    words = philox4x32((positions[0], positions[1], blocks, np.zeros_like(blocks)), (seeds[0], seeds[1]))
    return np.stack(words, -1).reshape(draws, -1)[:, :VOCAB]


def gumbel(words: Words) -> NDArray[np.float64]:
    made: NDArray[np.float64] = -np.log(-np.log((words + 0.5) * 2.0**-32))
    return made


WRONG: dict[str, Callable[[Words], NDArray[np.float64]]] = {
    "one word for the tokens of a block": lambda words: gumbel(
        np.repeat(words[:, ::4], 4, axis=1)[:, :VOCAB]
    ),
    "exponential instead of Gumbel": lambda words: -np.log((words + 0.5) * 2.0**-32),
    "no noise": lambda words: np.zeros(words.shape),
    "one word for all tokens": lambda words: gumbel(np.repeat(words[:, :1], VOCAB, axis=1)),
}


def test_a_wrong_noise_is_noticed() -> None:
    draws = 20_000
    words = noise_words(5, draws)

    def excess(filters: str, made: Callable[[Words], NDArray[np.float64]]) -> float:
        params = SamplingParams(**FILTERS[filters])
        kept = np.sort(kept_tokens(LOGITS, params))
        tokens = kept[(scaled(LOGITS, params)[kept] + made(words)[:, kept]).argmax(-1)]
        return chi_square_excess(tokens, probabilities(LOGITS, params))

    assert max(excess("plain", gumbel), excess("top_k", gumbel)) < 1.0
    for name, made in WRONG.items():
        assert max(excess("plain", made), excess("top_k", made)) > 2.0, name
