"""The tree of every size is the best one, against all trees of that size."""

from __future__ import annotations

import itertools

import numpy as np

from headrace.speculative.training.tree import Path, best_tree

WIDTH, HEADS = 3, 3


def ranks() -> np.ndarray:
    """Positions whose heads are right together more often than apart."""
    rng = np.random.default_rng(3)
    hard = rng.random(400)[:, None]
    return np.minimum((rng.random((400, HEADS)) * 2.5 * hard * np.arange(2, 2 + HEADS)).astype(np.int64), 9)


def share(found: np.ndarray, path: Path) -> float:
    return float((found[:, : len(path)] == path).all(axis=1).mean())


def test_no_tree_of_the_same_size_is_expected_to_accept_more() -> None:
    found = ranks()
    every = [path for depth in (1, 2, 3) for path in itertools.product(range(WIDTH), repeat=depth)]
    paths, shares = best_tree(found, 5, WIDTH)
    assert shares == [share(found, path) for path in paths]
    for size in range(1, 6):
        best = max(
            sum(share(found, path) for path in tree)
            for tree in itertools.combinations(every, size)
            if all(path[:-1] in ((), *tree) for path in tree)
        )
        assert abs(sum(shares[:size]) - best) < 1e-12


def test_parents_come_first_and_paths_that_never_were_right_do_not_come() -> None:
    found = ranks()
    paths, shares = best_tree(found, 1000, WIDTH)
    assert shares == sorted(shares, reverse=True) and 0.0 not in shares
    for number, path in enumerate(paths):
        assert path[:-1] in ((), *paths[:number]) and max(path) < WIDTH
    assert best_tree(np.full((4, 2), 7), 10, WIDTH) == ([], [])
