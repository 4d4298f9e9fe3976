"""Chooses the tree of a Medusa draft from how often each path was right. No torch here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Path = tuple[int, ...]


def best_tree(ranks: NDArray[np.int64], nodes: int, width: int) -> tuple[list[Path], list[float]]:
    """The `nodes` paths that are right most often, parents first, and the share of positions at which each is right.

    ranks [N, heads]: of the true token under each head, at held-out positions; 0 is the likeliest. `width`: ranks that
    are considered. The expected number of accepted tokens is the sum of the shares, and a path is never right more
    often than its parent, so adding the best path again and again gives the best tree of every size. The paper
    multiplies the heads' accuracies instead, as if they were independent.
    """
    shares: dict[Path, float] = {}
    open_: dict[Path, NDArray[np.bool_]] = {(): np.ones(len(ranks), dtype=bool)}
    candidates: dict[Path, float] = {}

    def expand(path: Path) -> None:
        """Offer the children of a path."""
        if len(path) == ranks.shape[1]:
            return
        found = ranks[open_[path], len(path)]
        counts = np.bincount(found[found < width], minlength=width)
        for rank in np.flatnonzero(counts).tolist():
            candidates[*path, rank] = counts[rank] / len(ranks)

    expand(())
    while candidates and len(shares) < nodes:
        best = min(candidates, key=lambda path: (-candidates[path], len(path), path))
        shares[best] = candidates.pop(best)
        open_[best] = open_[best[:-1]] & (ranks[:, len(best) - 1] == best[-1])
        expand(best)
    return list(shares), list(shares.values())
