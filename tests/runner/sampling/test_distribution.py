"""The distribution in NumPy against the edits of the torch sampler and the tests' own filters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence
from headrace.runner.sampling.distribution import distribution, edited
from headrace.runner.sampling.edits import Edits
from headrace.runner.sampling.state import SampleRow, SequenceState
from tests.runner.sampling.plain_draw import probabilities

VOCAB = 70
LOGITS = (np.random.default_rng(1).standard_normal(VOCAB) * 2).astype(np.float32)
ASKED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3, "min_p": 0.1},
    {"top_k": 7},
    {"top_p": 0.6, "temperature": 1.5},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"allowed_token_ids": [3, 9, 40], "logit_bias": {9: 2.0, 40: -1.0}},
    {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.2, "min_tokens": 9},
    {"bad_words": [(5,), (7, 11)], "top_k": 30},
]


@pytest.mark.parametrize("options", ASKED, ids=str)
def test_edits_and_filters(options: dict[str, Any]) -> None:
    params = SamplingParams(**options)
    state = SequenceState(NewSequence(params, (1, 2, 3, 4, 7), 3, 0, frozenset({6, 60})), VOCAB)
    for assumed in ((), (11, 7)):
        row = SampleRow(state, assumed)
        expected = torch.from_numpy(LOGITS[None].copy())
        Edits([state], VOCAB, torch.device("cpu")).apply(expected, [row])
        assert np.array_equal(edited(LOGITS, row), expected[0].numpy())
        got = distribution(LOGITS, row)
        assert got == pytest.approx(probabilities(expected[0].numpy(), params), abs=1e-12)


def test_a_grammars_mask() -> None:
    state = SequenceState(NewSequence(SamplingParams(), (1,), 1, 0, frozenset()), VOCAB)
    mask = np.array([0b1010, 1 << 5], dtype=np.uint32)  # tokens 1, 3 and 37; those from 64 on have no bits
    got = distribution(LOGITS, SampleRow(state), mask)
    assert np.flatnonzero(got).tolist() == [1, 3, 37]
    weights = np.exp(LOGITS[[1, 3, 37]].astype(np.float64))
    assert got[[1, 3, 37]] == pytest.approx(weights / weights.sum())
