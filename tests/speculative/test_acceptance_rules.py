"""Rejection sampling keeps the target's distribution, for chains and trees; typical acceptance does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.runner.sampling.randomness import uniforms
from headrace.speculative.acceptance_rules import Accepted, draw, entropy, reject, typical
from tests.runner.sampling.plain_draw import chi_square_excess

VOCAB = 6
Table = NDArray[np.float64]


def distributions(rows: int, seed: int, spread: float = 1.5) -> Table:
    weights = np.exp(np.random.default_rng(seed).standard_normal((rows, VOCAB)) * spread)
    table: Table = weights / weights.sum(-1, keepdims=True)
    return table


def numbers(trials: int, each: int, seed: int, stream: int) -> Table:
    """Uniform numbers [trials, each], of streams that no other draw takes."""
    columns = [uniforms([seed] * trials, range(trials), stream, index) for index in range(each)]
    return np.stack(columns, -1)


DraftOf = Callable[[Table, Table], tuple[list[int], Table]]


def independent(q: Table, draws: Table) -> tuple[list[int], Table]:
    """Candidates [C] drawn from q [V], each from all of it."""
    return [draw(q, float(uniform)) for uniform in draws], np.tile(q, (len(draws), 1))


def without_replacement(q: Table, draws: Table) -> tuple[list[int], Table]:
    tokens, rows, left = [], [], q
    for uniform in draws:
        tokens.append(draw(left, float(uniform)))
        rows.append(left)
        left = left.copy()
        left[tokens[-1]] = 0.0
        left = left / left.sum()
    return tokens, np.stack(rows)


@pytest.mark.parametrize(
    ("candidates", "draft_of"),
    [
        (1, independent),
        pytest.param(3, independent, marks=pytest.mark.long),
        (3, without_replacement),
    ],
)
def test_rejection_gives_the_targets_distribution(candidates: int, draft_of: DraftOf) -> None:
    trials = 6000
    p, q = distributions(2, seed=candidates)
    drafted = numbers(trials, candidates, 3, 7)
    decided = numbers(trials, candidates + 1, 3, 8)
    target = np.tile(p, (candidates + 1, 1))
    first = np.empty(trials, dtype=np.int64)
    accepted = 0
    for trial in range(trials):
        tokens, draft = draft_of(q, drafted[trial])
        got = reject(target, draft, tokens, [-1] * candidates, decided[trial])
        first[trial] = tokens[got.path[0]] if got.path else got.token
        accepted += len(got.path)
    assert chi_square_excess(first, p) < 1.0
    if candidates == 1:
        assert accepted / trials == pytest.approx(np.minimum(p, q).sum(), abs=0.03)
    naive = np.array([draw(q, float(uniform)) for uniform in drafted[:, 0]])  # each draft accepted
    assert chi_square_excess(naive, p) > 1.0


def test_a_tree_gives_the_targets_distribution_of_pairs() -> None:
    # Two children of the root, two children of the first of them; the target's second token depends on the first.
    trials, parents = 6000, [-1, -1, 0, 0]
    first, q_first, q_second = distributions(3, seed=9)
    after = distributions(VOCAB, seed=10)
    drafted, decided, last = numbers(trials, 4, 5, 7), numbers(trials, 5, 5, 8), numbers(trials, 1, 5, 9)
    pairs = np.empty(trials, dtype=np.int64)
    lengths = set()
    for trial in range(trials):
        top, draft_top = independent(q_first, drafted[trial, :2])
        below, draft_below = without_replacement(q_second, drafted[trial, 2:])
        tokens = top + below
        target = np.stack([first, *(after[token] for token in top), first, first])
        got = reject(target, np.concatenate((draft_top, draft_below)), tokens, parents, decided[trial])
        emitted = [*(tokens[node] for node in got.path), got.token]
        if len(emitted) == 1:
            emitted.append(draw(after[emitted[0]], float(last[trial, 0])))
        lengths.add(len(got.path))
        pairs[trial] = emitted[0] * VOCAB + emitted[1]
    assert lengths == {0, 1, 2}
    joint = (first[:, None] * after).ravel()
    likely = joint > 2e-3  # rarer pairs count as one
    grouped = np.append(joint[likely], joint[~likely].sum())
    places = np.full(len(joint), likely.sum())
    places[likely] = np.arange(likely.sum())
    assert chi_square_excess(places[pairs], grouped) < 1.0


def test_a_draft_from_the_target_itself_stays() -> None:
    p = distributions(4, seed=1)
    got = reject(p, p[:3], [2, 0, 5], [-1, 0, 1], [0.999999, 0.999999, 0.999999, 0.5])
    assert got.path == (0, 1, 2)
    assert got.token == draw(p[3], 0.5)


def test_what_the_target_cannot_say_is_rejected() -> None:
    p = np.array([0.0, 0.5, 0.5, 0.0, 0.0, 0.0])
    q = np.array([0.9, 0.1, 0.0, 0.0, 0.0, 0.0])
    for uniform in (1e-12, 0.5, 1 - 1e-12):
        got = reject(np.stack([p, p]), q[None], [0], [-1], [1e-300, uniform])
        assert got.path == ()
        assert got.token in (1, 2)


def test_typical_acceptance_is_medusas_rule() -> None:
    sharp = np.array([0.9, 0.08, 0.005, 0.005, 0.005, 0.005])
    flat = np.full(VOCAB, 1 / VOCAB)
    assert entropy(flat) == pytest.approx(np.log(VOCAB))
    # min(0.09, 0.3 / 6) = 0.05 for the flat one, 0.09 for the sharp one.
    assert typical(np.stack([flat, flat]), [3], [-1], 0.5).path == (0,)
    assert typical(np.stack([sharp, flat]), [0], [-1], 0.5).path == (0,)
    assert typical(np.stack([sharp, flat]), [1], [-1], 0.5) == Accepted((), draw(sharp, 0.5))
    tree = typical(np.stack([flat, sharp, sharp, flat]), [0, 1, 0], [-1, -1, 1], 0.5)
    assert tree == Accepted((1, 2), draw(flat, 0.5))


def test_typical_acceptance_is_not_lossless() -> None:
    trials = 2000
    p, q = distributions(2, seed=3, spread=0.7)
    drafted, decided = numbers(trials, 1, 3, 7), numbers(trials, 1, 3, 8)
    tokens = []
    for trial in range(trials):
        token = draw(q, float(drafted[trial, 0]))
        got = typical(np.stack([p, p]), [token], [-1], float(decided[trial, 0]))
        tokens.append(token if got.path else got.token)
    assert chi_square_excess(np.array(tokens), p) > 1.0


def test_what_does_not_fit_is_refused() -> None:
    p = distributions(3, seed=1)
    with pytest.raises(ValueError, match="for 1 tokens with 1 parents"):
        reject(p, p[:1], [0], [-1], [0.5, 0.5])
    with pytest.raises(ValueError, match="with 2 uniforms for 2 tokens"):
        reject(p, p[:2], [0, 1], [-1, 0], [0.5, 0.5])
    with pytest.raises(ValueError, match="node 1 has the parent 1, expected -1 to 0"):
        typical(p, [0, 1], [-1, 1], 0.5)
    with pytest.raises(ValueError, match="node 0 is token 6, outside the vocabulary of 6"):
        typical(p, [VOCAB, 1], [-1, 0], 0.5)
