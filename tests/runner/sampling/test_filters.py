"""Which tokens the sampler can draw, and how often: against a plain NumPy sampler and transformers' processors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence
from headrace.runner.sampling import draw as sampling_draw
from headrace.runner.sampling import state as sampling_state
from headrace.runner.sampling.draw import Filters, Noise, draw_sorted, draw_whole, rank, top
from headrace.runner.sampling.randomness import noise
from headrace.runner.sampling.state import SampleRow, first_width
from tests import needs
from tests.runner.sampling.plain_draw import chi_square_excess, kept_tokens, plain_token, probabilities

transformers = needs.lazily("transformers")

Make = Callable[[int], Any]

STOP = frozenset({1, 3})


@pytest.fixture(
    scope="module", params=[pytest.param("one width", marks=pytest.mark.long), "many widths"], autouse=True
)
def widths(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small vocabularies are sorted whole; narrow prefixes make them take every path that large ones take."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "many widths":
            patch.setattr(sampling_state, "WIDTHS", (2, 3, 5))
        yield


# ---- A plain sampler: one row, sorted lists, no tensors ----


def edited(logits: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int]) -> np.ndarray:
    """Logits [V] float32 after masks, min_tokens, bias and penalties."""
    edited = logits.astype(np.float32).copy()
    for token in range(len(edited)):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            edited[token] = -np.inf
        if token in (params.banned_token_ids or ()):
            edited[token] = -np.inf
        if token in STOP and len(output) < params.min_tokens:
            edited[token] = -np.inf
        edited[token] += np.float32((params.logit_bias or {}).get(token, 0.0))
        if params.repetition_penalty != 1.0 and (token in prompt or token in output):
            penalty = np.float32(params.repetition_penalty)
            edited[token] = edited[token] / penalty if edited[token] > 0 else edited[token] * penalty
        times = output.count(token)
        if times:
            edited[token] -= np.float32(params.frequency_penalty * times + params.presence_penalty)
    return edited


Case = tuple[np.ndarray, SamplingParams, list[int], list[int], int]  # logits, params, prompt, output, seed


@st.composite
def row(draw: st.DrawFn, vocab_size: int) -> Case:
    """A row with parameters. The numbers come from a seed, which is faster than lists of drawn floats."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = random.normal(size=vocab_size) * draw(st.sampled_from([0.0, 0.5, 3.0, 30.0]))
    if draw(st.booleans()):
        logits = np.round(logits * 2) / 2  # many equal logits
    logits[random.random(vocab_size) < draw(st.sampled_from([0.0, 0.2, 0.9]))] = -np.inf
    logits[random.integers(vocab_size)] = random.normal()

    def ids(most: int) -> list[int]:
        return random.integers(0, vocab_size, size=int(random.integers(1, most + 1))).tolist()

    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1e-320, 0.3, 1.0, 1.7, 100.0])),
        top_k=draw(st.sampled_from([-1, 0, 1, 2, 3, 4, vocab_size - 1, vocab_size, 2**31 - 1])),
        top_p=draw(st.sampled_from([1.0, 1e-9, 0.2, 0.5, 0.9, 0.999999])),
        min_p=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.75, -2.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.3, -0.1])),
        logit_bias=dict.fromkeys(ids(4), float(random.normal() * 5)) if draw(st.booleans()) else None,
        allowed_token_ids=tuple(ids(vocab_size)) if draw(st.booleans()) else None,
        banned_token_ids=tuple(ids(4)) if draw(st.booleans()) else None,
        min_tokens=draw(st.sampled_from([0, 2, 50])),
    )
    return logits.astype(np.float32), params, ids(10), ids(6), draw(st.integers(-(2**63), 2**63 - 1))


@settings(max_examples=60)
@given(data=st.data(), vocab_size=st.integers(4, 50), count=st.integers(1, 4))
def test_tokens_equal_those_of_the_plain_sampler(
    make_sampler: Make, data: st.DataObject, vocab_size: int, count: int
) -> None:
    rows = [data.draw(row(vocab_size)) for _ in range(count)]
    sampler = make_sampler(vocab_size)
    states = [
        SampleRow(sampler.start(NewSequence(params, tuple(prompt + output), len(prompt), seed, STOP)))
        for _, params, prompt, output, seed in rows
    ]
    got = sampler.sample(torch.from_numpy(np.stack([logits for logits, *_ in rows])), states)
    for index, (logits, params, prompt, output, seed) in enumerate(rows):
        changed = edited(logits, params, prompt, output)
        if changed.max() == -np.inf:
            assert got.tokens[index] == -1
            assert "leave no token" in got.errors[index]
            continue
        # Rounding may differ where the mass is just top_p.
        accepted = {plain_token(changed, params, seed, len(output), slack) for slack in (0.0, -1e-11, 1e-11)}
        assert got.tokens[index] in accepted
        assert index not in got.errors


# ---- Distributions ----

GRID = 4000


def draws(logits: torch.Tensor, params: SamplingParams, count: int = GRID) -> np.ndarray:
    """Tokens [count] for logits [V], at as many positions."""
    vocab_size = len(logits)
    rows = logits.expand(count, vocab_size).contiguous()
    ranked = 0 < params.top_k < vocab_size
    filters = Filters.of([params] * count, ranked, torch.device("cpu"))
    noise = Noise.of([3] * count, range(count))
    if ranked or params.top_p < 1.0:
        width = first_width(params.top_k if ranked else 1, vocab_size)
        return draw_sorted(rows, filters, noise, width).numpy()
    return draw_whole(rows, filters, noise).numpy()


def kept(logits: torch.Tensor, params: SamplingParams) -> list[int]:
    """Which tokens of logits [V] are drawn at all."""
    return sorted(set(draws(logits, params).tolist()))


WARPERS = [
    {"temperature": 0.6},
    {"temperature": 1.8},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 30},
    {"top_p": 0.1},
    {"top_p": 0.75},
    {"top_p": 0.99},
    {"min_p": 0.02},
    {"min_p": 0.3},
    {"temperature": 0.8, "min_p": 0.01, "top_k": 12, "top_p": 0.85},
    {"temperature": 1.4, "top_k": 9, "top_p": 0.6},
    {"temperature": 1.4, "min_p": 0.1, "top_p": 0.6},
]


@pytest.mark.parametrize("options", WARPERS, ids=str)
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_shares_are_the_probabilities_after_transformers_processors(
    options: dict[str, float], spread: float
) -> None:
    logits = torch.randn(64, generator=torch.Generator().manual_seed(11)) * spread
    params = SamplingParams(**options)  # type: ignore[arg-type]
    processors = transformers.LogitsProcessorList()
    if params.temperature != 1.0:
        processors.append(transformers.TemperatureLogitsWarper(params.temperature))
    if params.min_p:
        processors.append(transformers.MinPLogitsWarper(params.min_p))
    if params.top_k:
        processors.append(transformers.TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        processors.append(transformers.TopPLogitsWarper(params.top_p))
    expected = processors(torch.zeros((1, 1), dtype=torch.long), logits[None]).double().softmax(-1)[0]
    wanted = expected.numpy()
    assert np.flatnonzero(wanted).tolist() == sorted(kept_tokens(logits.numpy(), params).tolist())
    assert np.abs(wanted - probabilities(logits.numpy(), params)).max() < 1e-6
    got = np.bincount(draws(logits, params), minlength=64) / GRID
    assert (got[wanted == 0.0] == 0.0).all()
    assert (np.abs(got - wanted) < 4.5 * np.sqrt(wanted * (1 - wanted) / GRID) + 1e-9).all()


@pytest.mark.parametrize("penalty", [0.7, 1.25, 2.0])
def test_the_repetition_penalty_is_that_of_transformers(make_sampler: Make, penalty: float) -> None:
    vocab_size = 80
    prompt, output = [3, 5, 5, 70, 9], [70, 11, 12, 11]
    sampler = make_sampler(vocab_size)
    params = SamplingParams(temperature=0.0, repetition_penalty=penalty)
    state = sampler.start(NewSequence(params, tuple(prompt + output), len(prompt), 0, STOP))
    for trial in range(20):
        logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(trial)) * 2
        logits[0, 11] = 4.0 + 0.1 * trial
        processor = transformers.RepetitionPenaltyLogitsProcessor(penalty)
        expected = processor(torch.tensor([prompt + output]), logits.clone()).argmax(-1)
        assert sampler.sample(logits, [SampleRow(state)]).tokens == expected.tolist()


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 6}, {"top_p": 0.8}, {"temperature": 1.5, "min_p": 0.05}], ids=str
)
@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_draws_follow_the_distribution(make_sampler: Make, options: dict[str, float], over: str) -> None:
    vocab_size, count = 12, 5000
    logits = torch.linspace(1.5, -1.5, vocab_size)[torch.randperm(vocab_size, generator=torch.Generator())]
    params = SamplingParams(**options)  # type: ignore[arg-type]
    sampler = make_sampler(vocab_size)
    rows = []
    for index in range(count):
        seed, length = (index, 0) if over == "seeds" else (1234, index)
        rows.append(SampleRow(sampler.start(NewSequence(params, (0,) * length, 0, seed, STOP))))
    tokens = sampler.sample(logits.expand(count, vocab_size).contiguous(), rows).tokens
    assert chi_square_excess(np.array(tokens), probabilities(logits.numpy(), params)) < 1.0


def test_top_k_keeps_exactly_k_and_takes_the_lowest_ids_among_equals() -> None:
    logits = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0, 0.0, 1.0])
    assert kept(logits, SamplingParams(top_k=4)) == [0, 1, 2, 3]
    assert kept(torch.zeros(300), SamplingParams(top_k=5)) == [0, 1, 2, 3, 4]


def test_top_p_keeps_the_token_that_crosses_the_line_and_takes_low_ids_first() -> None:
    assert kept(torch.zeros(200), SamplingParams(top_p=0.0501)) == list(range(11))
    assert kept(torch.zeros(200), SamplingParams(top_p=1e-300)) == [0]


def test_top_p_at_an_exact_edge() -> None:
    # Four equal tokens have running sums of exactly 0.25, 0.5, 0.75 and 1.
    logits = torch.zeros(4)
    assert kept(logits, SamplingParams(top_p=0.5)) == [0, 1]
    assert kept(logits, SamplingParams(top_p=0.500001)) == [0, 1, 2]
    assert kept(logits, SamplingParams(top_p=0.75, top_k=3)) == [0, 1, 2]


@pytest.mark.parametrize("spread", [0.0, 1.0, 20.0])
def test_a_whole_draw_leaves_out_no_noise_that_could_win(spread: float) -> None:
    vocab_size, count = 1003, 300
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(2)) * spread
    got = draws(logits, SamplingParams(), count)
    every = noise([3] * count, range(count), np.arange(vocab_size))
    assert got.tolist() == (logits.numpy().astype(np.float64) + every).argmax(-1).tolist()


def test_masked_rows_are_settled_without_a_full_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def recorded(rows: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        tried.append(width)
        return rank(rows, width)

    monkeypatch.setattr(sampling_draw, "rank", recorded)
    logits = torch.full((100,), -math.inf)
    logits[[7, 50]] = 0.0
    narrow = first_width(3, 100)
    assert kept(logits, SamplingParams(top_k=3)) == [7, 50]
    assert tried == [narrow]


def test_minus_zero_equals_zero() -> None:
    logits = torch.tensor([-0.0, 0.0, -0.0, 0.0, -5.0])
    assert kept(logits, SamplingParams(top_k=2)) == [0, 1]


# ---- Rank ----


@settings(max_examples=80)
@given(
    values=st.lists(
        st.one_of(st.integers(-2, 2).map(float), st.floats(width=32, allow_nan=False, allow_infinity=False)),
        min_size=2,
        max_size=60,
    ),
    data=st.data(),
)
def test_top_is_a_full_sort_cut_off(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    row = torch.tensor([values, values[::-1]], dtype=torch.float32)
    got_values, got_ids = top(row, k)
    for index in range(2):
        numbers = row[index].tolist()
        order = sorted(range(len(numbers)), key=lambda token: (-numbers[token], token))[:k]
        assert got_ids[index].tolist() == order
        assert got_values[index].tolist() == [numbers[token] for token in order]


def test_ties_across_the_end_of_a_prefix_go_to_the_lowest_ids() -> None:
    random = np.random.default_rng(4)
    rows = torch.zeros(6, 3000)
    for index in range(6):
        rows[index, random.choice(3000, size=30, replace=False)] = 1.0
    for k in (2, 40, 63):
        _, ids = top(rows, k)
        expected = np.argsort(-rows.numpy(), axis=-1, kind="stable")[:, :k]
        assert ids.tolist() == expected.tolist()


def test_a_narrow_rank_is_exact_above_its_last_value() -> None:
    row = torch.tensor([[0.0, 3.0, 1.0, 1.0, 3.0, 2.0, 1.0, 1.0]])
    values, ids = rank(row, 4)
    assert values.tolist() == [[3.0, 3.0, 2.0, 1.0]]
    assert ids[0, :3].tolist() == [1, 4, 5]


def test_widths_leave_room_for_one_more_value() -> None:
    for vocab_size in (1, 7, 100, 1000, 32_000):
        for k in (1, 2, 3, 63, 64, 255, 256, 1024, 5000):
            width = first_width(min(k, vocab_size), vocab_size)
            assert width == vocab_size or min(k, vocab_size) < width
