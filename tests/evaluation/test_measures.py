"""Perplexity, divergence and agreement against their definitions, on models that are tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.evaluation import measures
from headrace.evaluation.documents import Document
from headrace.evaluation.measures import agreement, divergence, perplexity

V = 11
DOCUMENTS = [Document((1, 2, 3, 4, 5)), Document((7, 7, 7)), Document((1, 9, 8, 2, 6, 3), 3), Document((4,))]
PREDICTED = [(1, 2), (2, 3), (3, 4), (4, 5), (7, 7), (7, 7)]


class Table:
    """A model whose next token depends on the last one alone: row `token` of `logits` [V, V]."""

    vocab_size = V

    def __init__(self, seed: int, near: NDArray[np.float32] | None = None) -> None:
        self.table = np.random.default_rng(seed).normal(scale=2.0, size=(V, V)).astype(np.float32)
        if near is not None:
            self.table = near + 0.1 * self.table
        self.asked: list[int] = []

    def states(self, documents: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        return [np.eye(V, dtype=np.float32)[list(one)] for one in documents]

    def logits(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        self.asked.append(len(states))
        found: NDArray[np.float32] = self.table[states.argmax(axis=1)]
        return found

    def write(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[int, ...]]:
        found = []
        for prompt in prompts:
            text = [prompt[-1]]
            for _ in range(tokens):
                text.append(int(self.table[text[-1]].argmax()))
            found.append(tuple(text[1:]))
        return found

    def log_probabilities(self) -> NDArray[np.float64]:
        table = self.table.astype(np.float64)
        found: NDArray[np.float64] = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
        return found


PAIRS = [*PREDICTED, (8, 2), (2, 6), (6, 3)]
"""(token, next one) of all that DOCUMENTS predict: the third begins to be predicted at its fourth token."""


def test_perplexity_is_that_of_what_is_predicted() -> None:
    model, shown = Table(0), []
    found = perplexity(model, DOCUMENTS, lambda done, total: shown.append((done, total)))
    losses = [-model.log_probabilities()[pair] for pair in PAIRS]
    assert found.tokens == len(PAIRS) == sum(one.trained for one in DOCUMENTS)
    assert found.mean_nll == pytest.approx(np.mean(losses))
    assert found.value == pytest.approx(np.exp(np.mean(losses)))
    assert found.error == pytest.approx(np.std(losses, ddof=1) / 3)
    assert shown[-1] == (9, 9)


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_divergence_is_that_of_the_definition_in_pieces_of_any_size(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "ROWS_BYTES", 8 * V * rows)
    reference = Table(1)
    model = Table(2, near=reference.table)
    found = divergence(model, reference, DOCUMENTS)
    ours, theirs = model.log_probabilities(), reference.log_probabilities()
    each = [float((np.exp(theirs[a]) * (theirs[a] - ours[a])).sum()) for a, _ in PAIRS]
    assert found.mean == pytest.approx(np.mean(each)) and min(each) > 0
    assert found.median == pytest.approx(np.median(each)) and found.most == pytest.approx(max(each))
    same = [ours[a].argmax() == theirs[a].argmax() for a, _ in PAIRS]
    assert found.top_1 == pytest.approx(np.mean(same))
    assert found.model.value == pytest.approx(perplexity(model, DOCUMENTS).value)
    assert found.perplexity_increase == pytest.approx(found.model.value / found.reference.value - 1)
    changes = [np.exp(ours[pair]) - np.exp(theirs[pair]) for pair in PAIRS]
    assert found.probability_rms == pytest.approx(np.sqrt(np.mean(np.square(changes))))
    losses = [theirs[pair] - ours[pair] for pair in PAIRS]
    error = np.std(losses, ddof=1) / 3
    assert found.increase_error == pytest.approx(error * (1 + found.perplexity_increase))
    assert found.increase_error < found.model.error
    assert max(model.asked) <= rows


def test_a_model_has_no_distance_to_itself_even_where_it_rules_tokens_out() -> None:
    model = Table(3)
    model.table[:, 10] = -np.inf
    found = divergence(model, model, DOCUMENTS)
    assert (found.mean, found.most, found.top_1, found.perplexity_increase) == (0, 0, 1, 0)
    assert found.increase_error == 0


def test_agreement_counts_to_the_first_difference() -> None:
    one, other = Table(4), Table(4)
    first = one.write([[0]], 1)[0][0]
    assert agreement(one, other, [[0], [3]], 8) == measures.Agreement(2, 8, 1.0, 1.0)
    other.table[first] = 0
    other.table[first, one.write([[0]], 2)[0][1] - 1] = 1
    assert agreement(one, other, [[0]], 8) == measures.Agreement(1, 8, 0.0, 1 / 8)


def test_what_cannot_be_measured_is_refused() -> None:
    other = Table(5)
    other.vocab_size = V + 1
    with pytest.raises(ValueError, match="11 tokens cannot be compared with 12"):
        divergence(Table(5), other, DOCUMENTS)
    for nothing in ([], [Document((4,))]):
        with pytest.raises(ValueError, match="nothing to predict"):
            perplexity(Table(5), nothing)
        with pytest.raises(ValueError, match="nothing to predict"):
            divergence(Table(5), Table(6), nothing)
