"""Acceptance by rejection keeps the distribution of tokens, whatever drafts; typical acceptance follows its rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace import LLM, Grammar, SamplingParams
from headrace.core.types import NewSequence, TokenLogprobs
from headrace.runner.model import StepSampler
from headrace.runner.sampling.distribution import distribution
from headrace.runner.sampling.output import NO_TOKEN, SampleOutput
from headrace.runner.sampling.state import SampleRow, SequenceState
from headrace.runner.sampling.token_masks import TokenMasks
from headrace.speculative import acceptance_samplers
from headrace.speculative.acceptance_samplers import AcceptingSampler, samplers
from tests.runner.sampling.plain_draw import chi_square_excess, plain_token

VOCAB = 5
Logits = NDArray[np.float32]
PARAMS = SamplingParams(temperature=0.8, min_p=0.02, logprobs=1)
TARGET, DRAFT = np.random.default_rng(4).standard_normal((2, VOCAB + 2, VOCAB)).astype(np.float32)
"""Logits of two models that disagree: row 0 after the prompt, row 1 + t after token t, the last row later on."""

LIKELY = 3
"""A token that the target gives a probability of about 0.2 after the prompt."""


class PlainSampler:
    """Draws by the plain formula. Satisfies `StepSampler`; the rows in `failing` give no token."""

    failing: frozenset[int] = frozenset()

    def sample(
        self,
        logits: Logits,
        rows: Sequence[SampleRow],
        at: Sequence[int] | None = None,
        masks: TokenMasks | None = None,
        *,
        with_logprobs: bool = True,
    ) -> SampleOutput:
        where = range(len(rows)) if at is None else at
        tokens = [
            plain_token(logits[index], row.state.params, row.state.seed, row.position)
            for index, row in zip(where, rows, strict=True)
        ]
        tokens = [NO_TOKEN if index in self.failing else token for index, token in enumerate(tokens)]
        return SampleOutput(tokens, self.score(logits, 0, tokens, 0), dict.fromkeys(self.failing, "failed"))

    def score(self, logits: Logits, first: int, targets: Sequence[int], k: int) -> tuple[TokenLogprobs, ...]:
        return tuple(
            TokenLogprobs(token, float(logits[first + at, token]), 1, ()) for at, token in enumerate(targets)
        )

    def exclude(self, logits: Logits, rows: Sequence[int], tokens: Sequence[int]) -> None:
        logits[rows, tokens] = -np.inf

    def row(self, logits: Logits, index: int) -> Logits:
        return logits[index]


def sequence(seed: int, params: SamplingParams = PARAMS) -> SequenceState:
    return SequenceState(NewSequence(params, (0,), 1, seed, frozenset()), VOCAB)


def run(
    verifier: StepSampler[Logits], drafter: StepSampler[Logits] | None, state: SequenceState
) -> list[int]:
    """The first two tokens of a sequence with two drafts, drawn by `drafter` or always the same."""
    draft: tuple[int, ...] = ()
    for depth, fixed in enumerate((LIKELY, 0)):
        place = 1 + draft[-1] if draft else 0
        rows = [SampleRow(state, draft)]
        token = fixed if drafter is None else drafter.sample(DRAFT[place][None], rows).tokens[0]
        draft = (*draft, token)
        assert len(draft) == depth + 1
    logits = TARGET[[0, 1 + draft[0], VOCAB + 1]]
    samples = verifier.sample(logits, [SampleRow(state, draft[:count]) for count in range(3)])
    assert samples.logprobs is not None
    for row, (token, found) in enumerate(zip(samples.tokens, samples.logprobs, strict=True)):
        assert found == TokenLogprobs(token, float(logits[row, token]), 1, ())
    first = samples.tokens[0]
    if first == draft[0]:
        return samples.tokens[:2]
    state.extend([first])
    return [first, verifier.sample(TARGET[1 + first][None], [SampleRow(state)]).tokens[0]]


def joint() -> NDArray[np.float64]:
    """Probabilities [VOCAB * VOCAB] of the first two tokens without drafts."""
    state = SampleRow(sequence(0))
    first = distribution(TARGET[0], state)
    return np.concatenate([first[token] * distribution(TARGET[1 + token], state) for token in range(VOCAB)])


@pytest.mark.parametrize(
    ("drawn", "trials"),
    [(True, 500), *(pytest.param(drawn, 20_000, marks=pytest.mark.long) for drawn in (True, False))],
)
def test_rejection_keeps_the_distribution(drawn: bool, trials: int) -> None:
    verifier, drafter = samplers("rejection", PlainSampler())
    pairs = [run(verifier, drafter if drawn else None, sequence(seed)) for seed in range(trials)]
    expected = joint()
    likely = expected * trials > 6  # rarer pairs count as one
    places = np.where(likely, np.cumsum(likely) - 1, likely.sum())
    shares = np.append(expected[likely], expected[~likely].sum())
    found = places[[first * VOCAB + second for first, second in pairs]]
    assert chi_square_excess(found, shares) < 1.0


@pytest.mark.parametrize("trials", [300, pytest.param(8000, marks=pytest.mark.long)])
def test_rejection_keeps_the_distribution_in_a_tree(trials: int) -> None:
    """The second child is what would be drawn without the first, with the same noise and a filter that moves."""
    params = SamplingParams(temperature=0.8, top_k=3)
    verifier, drafter = samplers("rejection", PlainSampler())
    found = []
    for seed in range(trials):
        state, logits = sequence(seed, params), DRAFT[:1].copy()
        first = drafter.sample(logits, [SampleRow(state)]).tokens[0]
        drafter.exclude(logits, [0], [first])
        second = drafter.sample(logits, [SampleRow(state)]).tokens[0]
        rows = [SampleRow(state, path) for path in ((), (first,), (second,))]
        found.append(verifier.sample(TARGET[[0, 1, 2]], rows).tokens[0])
    shares = distribution(TARGET[0], SampleRow(sequence(0, params)))
    assert chi_square_excess(np.array(found), shares) < 1.0


def test_further_choices_need_no_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first draw for a place is independent of others; each distribution costs a pass over the vocabulary."""
    made: list[int] = []

    def counted(logits: Logits, row: SampleRow, mask: NDArray[np.uint32] | None) -> NDArray[np.float64]:
        made.append(len(row.assumed))
        return distribution(logits, row, mask)

    monkeypatch.setattr(acceptance_samplers, "distribution", counted)
    _, drafter = samplers("rejection", PlainSampler())
    state, logits = sequence(5), DRAFT[:1].copy()
    for assumed in ((), (2,)):
        for _ in range(3):
            token = drafter.sample(logits, [SampleRow(state, assumed)]).tokens[0]
            drafter.exclude(logits, [0], [token])
        logits = DRAFT[:1].copy()
    assert made == [0, 1]


def test_typical_acceptance_is_another_distribution() -> None:
    verifier, drafter = samplers("typical", PlainSampler())
    assert isinstance(drafter, PlainSampler)
    shares = distribution(TARGET[0], SampleRow(sequence(0)))
    assert 0.09 < shares[LIKELY] < 0.5  # likely enough to stay each time
    assert {run(verifier, None, sequence(seed))[0] for seed in range(20)} == {LIKELY}


def test_exact_acceptance_is_the_sampler_itself() -> None:
    plain = PlainSampler()
    assert samplers("exact", plain) == (plain, plain)


def test_greedy_sequences_and_those_without_drafts_are_left_as_they_are() -> None:
    plain = PlainSampler()
    for name in ("rejection", "typical"):
        verifier, _ = samplers(name, plain)
        greedy = sequence(3, SamplingParams(temperature=0.0))
        rows = [SampleRow(greedy), SampleRow(greedy, (1,)), SampleRow(sequence(4))]
        assert verifier.sample(TARGET[:3], rows) == plain.sample(TARGET[:3], rows)


def test_drafts_that_are_a_tree() -> None:
    """Two candidates for the first token, one after each: samples follow the branch that stays."""
    verifier, _ = samplers("rejection", PlainSampler())
    seen = set()
    for seed in range(60):
        state = sequence(seed)
        paths = [(), (0,), (1,), (0, 3), (1, 4)]
        logits = TARGET[[0, 1, 2, VOCAB + 1, VOCAB + 1]]
        tokens = verifier.sample(logits, [SampleRow(state, path) for path in paths]).tokens
        plain = PlainSampler().sample(logits, [SampleRow(state, path) for path in paths]).tokens
        branch = tokens[0] if tokens[0] in (0, 1) else None
        seen.add(branch)
        for row, path in enumerate(paths[1:], 1):
            if not path or path[0] != branch:
                assert tokens[row] == plain[row]  # never looked at
    assert seen == {0, 1, None}


def test_a_row_that_fails_keeps_no_token() -> None:
    plain = PlainSampler()
    plain.failing = frozenset({1})
    for seed in range(5):
        samples = AcceptingSampler(plain, None).sample(
            TARGET[:3], [SampleRow(state := sequence(seed)), SampleRow(state, (1,)), SampleRow(state, (1, 2))]
        )
        assert samples.tokens[1] == NO_TOKEN and samples.errors == {1: "failed"}


@pytest.mark.parametrize("acceptance", ["rejection", pytest.param("typical", marks=pytest.mark.long)])
def test_an_engine_with_another_acceptance(acceptance: str) -> None:
    options: dict[str, Any] = {
        "num_threads": 1, "kv_cache_memory": "8MiB", "adaptive_speculation": False,
        "speculative": "ngram,tale-draft", "num_speculative_tokens": 3,
    }  # fmt: skip
    ways: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "logprobs": 2},
        {"temperature": 0.8, "grammar": Grammar("regex", "[a-z ]{20}"), "max_tokens": 40},
    ]
    params = [SamplingParams(**{"seed": 1, "max_tokens": 24, **way}) for way in ways]
    prompts = ["Once upon a time", "The fox said that the fox said that", "Words: "]
    llm = LLM("tale", acceptance=acceptance, **options)
    outputs = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
    accepted = [one.value for one in llm.get_metrics() if "accepted_tokens_total" in one.name]
    exact = LLM("tale", **options).generate(prompts[:1], params[:1], use_tqdm=False)[0].outputs[0]
    assert outputs[0].token_ids == exact.token_ids
    assert outputs[1].logprobs is not None
    for token, found in zip(outputs[1].token_ids, outputs[1].logprobs, strict=True):
        assert token in found
    assert len(outputs[2].text) == 20 and sum(accepted) > 0
