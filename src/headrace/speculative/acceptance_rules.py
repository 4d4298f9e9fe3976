"""Other ways to decide which drafted tokens stay: rejection sampling and typical acceptance, for comparison.

Headrace itself verifies drafts without them: it draws each token as if there were no draft, with noise that target and
draft model share, and keeps the drafted tokens that are equal. So a seed gives the same tokens with any draft. The
functions here are those of the literature: with them, the tokens of a seed depend on the drafts.

Both take a draft as a tree: node i is a token that follows node parents[i], which comes before it, or what is known
already where that is -1. A chain of tokens has parents -1, 0, 1, ... Probabilities are those after all filters: row 0
of `target` follows what is known, row i + 1 follows node i. Uniform numbers are in (0, 1): for a reproducible draw take
`headrace.runner.sampling.randomness.uniforms` with a stream of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]

TYPICAL_EPSILON, TYPICAL_DELTA = 0.09, 0.3
"""The thresholds of Medusa's published runs."""


class Accepted(NamedTuple):
    """What one verification yields."""

    path: tuple[int, ...]
    """Nodes that stay, each the parent of the next."""
    token: int
    """The token after them, drawn by the target model."""


def reject(
    target: Probabilities,
    draft: Probabilities,
    tokens: Sequence[int],
    parents: Sequence[int],
    uniforms: Sequence[float] | NDArray[np.float64],
) -> Accepted:
    """Rejection sampling: tokens are distributed as the target model's, whatever the draft (lossless in distribution).

    target [N + 1, V]; draft [N, V], row i being the distribution that tokens[i] was drawn from: where children of a
    node are drawn without replacement, that is the distribution without those before it. uniforms [N + 1], of which the
    last draws the final token. A drafted token stays with probability min(1, p / q) (Leviathan et al. 2023, Chen et al.
    2023). If it does not, p becomes the positive part of p - q, against which the next child is tried (Miao et al.
    2024). Raises ValueError where shapes disagree or a parent does not come before its child.
    """
    _check(target, tokens, parents)
    if draft.shape != (len(tokens), target.shape[1]) or len(uniforms) != len(tokens) + 1:
        raise ValueError(f"the draft is {draft.shape} with {len(uniforms)} uniforms for {len(tokens)} tokens")
    path: list[int] = []
    node, left = -1, target[0]
    children = _children(parents)
    while True:
        for child in children.get(node, ()):
            token, q = tokens[child], draft[child]
            if uniforms[child] * q[token] < left[token]:
                path.append(child)
                node, left = child, target[child + 1]
                break
            left = _residual(left, q)
        else:
            return Accepted(tuple(path), draw(left, float(uniforms[-1])))


def typical(
    target: Probabilities,
    tokens: Sequence[int],
    parents: Sequence[int],
    uniform: float,
    epsilon: float = TYPICAL_EPSILON,
    delta: float = TYPICAL_DELTA,
) -> Accepted:
    """Typical acceptance (Medusa: Cai et al. 2024, section 2.3.1). It is NOT lossless.

    A token stays where the target model gives it more than min(epsilon, delta * exp(-entropy)): what it finds likely
    enough, though it may have drawn another. So tokens are not distributed as the target model's: likely drafts come
    too often. target [N + 1, V]; of all paths whose nodes stay, the longest, the first of equals. Raises ValueError as
    `reject` does.
    """
    _check(target, tokens, parents)
    paths: dict[int, tuple[int, ...]] = {-1: ()}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        p = target[parent + 1]
        if parent in paths and p[token] > min(epsilon, delta * math.exp(-entropy(p))):
            paths[node] = (*paths[parent], node)
    longest = max(paths.values(), key=len)
    last = longest[-1] if longest else -1
    return Accepted(longest, draw(target[last + 1], uniform))


def draw(weights: Probabilities, uniform: float) -> int:
    """The index of weights [V] at which their running sum exceeds `uniform` times the whole; never one of weight 0."""
    running = np.cumsum(weights)
    index = int(np.searchsorted(running, uniform * running[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))


def entropy(p: Probabilities) -> float:
    """Of probabilities [V], in nats."""
    possible = p[p > 0]
    return float(-(possible * np.log(possible)).sum())


def _residual(p: Probabilities, q: Probabilities) -> Probabilities:
    """The positive part of p - q, as probabilities. Where nothing is left, p was q, and only rounding led here."""
    left = np.maximum(p - q, 0.0)
    total = float(left.sum())
    return left / total if total > 0 else p


def _children(parents: Sequence[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        found.setdefault(parent, []).append(node)
    return found


def _check(target: Probabilities, tokens: Sequence[int], parents: Sequence[int]) -> None:
    if target.ndim != 2 or len(target) != len(tokens) + 1 or len(parents) != len(tokens):
        raise ValueError(
            f"the target's probabilities are {target.shape} for {len(tokens)} tokens with {len(parents)} parents"
        )
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} has the parent {parent}, expected -1 to {node - 1}")
        if not 0 <= token < target.shape[1]:
            raise ValueError(f"node {node} is token {token}, outside the vocabulary of {target.shape[1]}")
