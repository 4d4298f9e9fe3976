"""The draw as its definition says it, over whole rows in NumPy: what the samplers are held against."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from headrace.core.params import SamplingParams
from headrace.runner.sampling.randomness import noise

Logits = NDArray[np.float32]


def scaled(logits: Logits, params: SamplingParams) -> NDArray[np.float64]:
    """Logits [V] below the highest one, over temperature."""
    wide = logits.astype(np.float64)
    difference: NDArray[np.float64] = (wide - wide.max()) / max(params.temperature, 1e-30)
    return difference


def kept_tokens(logits: Logits, params: SamplingParams, slack: float = 0.0) -> NDArray[np.int64]:
    """Ids of the tokens that min_p, top_k and top_p keep, by falling logit; `slack` is added to top_p."""
    order = np.argsort(-logits, kind="stable")
    z = scaled(logits, params)
    order = order[np.isfinite(logits[order])]
    if params.min_p > 0.0:
        order = order[z[order] >= math.log(params.min_p)]
    if 0 < params.top_k < len(logits):
        order = order[: params.top_k]
    if params.top_p < 1.0:
        mass = np.exp(z[order])
        running = np.cumsum(mass / mass.sum())
        order = order[: 1 + int(np.searchsorted(running, params.top_p + slack))]
    return order


def plain_token(logits: Logits, params: SamplingParams, seed: int, position: int, slack: float = 0.0) -> int:
    """The token of edited logits [V]."""
    if params.temperature == 0.0:
        return int(logits.argmax())
    ids = np.sort(kept_tokens(logits, params, slack))
    sums = scaled(logits, params)[ids] + noise([seed], [position], ids)[0]
    return int(ids[sums.argmax()])


def probabilities(logits: Logits, params: SamplingParams) -> NDArray[np.float64]:
    """What the tokens' shares tend to: softmax over the kept ones, 0 for the others."""
    shares = np.zeros(len(logits))
    kept = kept_tokens(logits, params)
    shares[kept] = np.exp(scaled(logits, params)[kept])
    return shares / shares.sum()


def chi_square_excess(tokens: NDArray[np.int64], shares: NDArray[np.float64]) -> float:
    """Chi-squared of drawn tokens over its limit at p = 0.001, which random draws exceed in one of a thousand cases.

    The limit is Wilson's and Hilferty's, exact to 1 %. Infinite where a token without a share was drawn.
    """
    counts = np.bincount(tokens, minlength=len(shares))
    possible = shares > 0
    if counts[~possible].any():
        return math.inf
    expected = shares[possible] * len(tokens)
    assert expected.min() > 5, "too few draws for this test"
    chi_square = float(((counts[possible] - expected) ** 2 / expected).sum())
    degrees = int(possible.sum()) - 1
    if degrees == 0:
        return 0.0
    spread = 2 / (9 * degrees)
    return chi_square / (degrees * (1 - spread + 3.0902 * math.sqrt(spread)) ** 3)
