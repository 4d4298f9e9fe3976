"""Log-probabilities of chosen and of top tokens, against plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence, TokenLogprobs
from headrace.runner.sampling import logprobs as logprobs_module
from headrace.runner.sampling.logprobs import prompt_logprobs, token_logprobs
from headrace.runner.sampling.state import SampleRow

Make = Callable[[int], Any]


def expected_of(logits: list[float], token: int, k: int) -> TokenLogprobs:
    high = max(logits)
    total = high + math.log(sum(math.exp(value - high) for value in logits))
    rank = [1 + sum(other > value for other in logits) for value in logits]
    order = sorted(range(len(logits)), key=lambda other: (-logits[other], other))[:k]
    top = tuple((other, logits[other] - total, rank[other]) for other in order)
    return TokenLogprobs(token, logits[token] - total, rank[token], top)


def check(got: TokenLogprobs, expected: TokenLogprobs) -> None:
    assert (got.token, got.rank) == (expected.token, expected.rank)
    assert got.logprob == pytest.approx(expected.logprob, abs=1e-5)
    assert [(entry[0], entry[2]) for entry in got.top] == [(entry[0], entry[2]) for entry in expected.top]
    assert [entry[1] for entry in got.top] == pytest.approx([entry[1] for entry in expected.top], abs=1e-5)


@pytest.mark.parametrize("vocab_size", [1, 5, 700])
@pytest.mark.parametrize("ties", [True, False])
def test_numbers_equal_plain_python(vocab_size: int, ties: bool) -> None:
    logits = torch.randn(9, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 2
    if ties:
        logits = logits.round()
    tokens = [index % vocab_size for index in range(9)]
    counts = [0, 1, 2, 5, 20, 63, 64, 3, 0]
    got = token_logprobs(logits, tokens, counts)
    for row, token, count, values in zip(logits.tolist(), tokens, counts, got, strict=True):
        check(values, expected_of(row, token, count))
        assert len(values.top) == min(count, vocab_size)


def test_many_equal_logits_are_listed_by_id() -> None:
    (got,) = token_logprobs(torch.zeros(1, 5000), [4321], [4])
    assert [entry[0] for entry in got.top] == [0, 1, 2, 3]
    assert {entry[2] for entry in got.top} == {got.rank} == {1}


def test_prompt_rows_do_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(23, 300, generator=torch.Generator().manual_seed(2))
    targets = list(range(23))
    whole = prompt_logprobs(logits, targets, 4)
    assert [values.token for values in whole] == targets
    monkeypatch.setattr(logprobs_module, "CHUNK_ELEMENTS", 900)
    assert prompt_logprobs(logits, targets, 4) == whole
    assert prompt_logprobs(logits[7:9], targets[7:9], 4) == whole[7:9]
    assert prompt_logprobs(logits[:0], [], 4) == ()


def test_a_masked_token_has_minus_infinity() -> None:
    (got,) = token_logprobs(torch.tensor([[0.0, -math.inf, 0.0]]), [1], [3])
    assert got.logprob == -math.inf
    assert got.rank == 3
    assert [entry[0] for entry in got.top] == [0, 2, 1]


def test_sampled_rows_report_the_models_own_distribution(make_sampler: Make) -> None:
    vocab_size = 400
    sampler = make_sampler(vocab_size)
    logits = torch.randn(4, vocab_size, generator=torch.Generator().manual_seed(8)) * 2
    options = [
        SamplingParams(temperature=0.1, top_k=3, logprobs=2),
        SamplingParams(temperature=0.0, repetition_penalty=5.0, logprobs=0),
        SamplingParams(),
        SamplingParams(logit_bias={9: 100.0}, banned_token_ids=(1, 2), min_tokens=5, logprobs=7),
    ]
    rows = [SampleRow(sampler.start(NewSequence(p, (3, 4), 1, 6, frozenset({0})))) for p in options]
    got = sampler.sample(logits, rows)
    assert got.logprobs is not None
    assert got.logprobs[2] is None
    assert got.tokens[3] == 9
    for row in (0, 1, 3):
        values = got.logprobs[row]
        assert values is not None
        check(values, expected_of(logits[row].tolist(), got.tokens[row], options[row].logprobs or 0))


def test_ranks_agree_with_numpy() -> None:
    logits = torch.randn(1, 2000, generator=torch.Generator().manual_seed(1))
    order = np.argsort(-logits[0].numpy(), kind="stable")
    for place in (0, 5, 1999):
        (got,) = token_logprobs(logits, [int(order[place])], [0])
        assert got.rank == place + 1
