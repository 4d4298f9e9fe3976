"""What a row's token is drawn from, as probabilities: edits and filters of `sampler` in plain NumPy.

Samplers never need it, as the arg-max with Gumbel noise has no sums. Acceptance by probabilities does, see
`speculative.acceptance_samplers`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from headrace.runner.sampling.state import SampleRow
from headrace.runner.sampling.token_masks import Bits

COLDEST = 1e-30
"""Anything lower has all of its weight on the largest logits already."""


def distribution(
    logits: NDArray[np.float32], row: SampleRow, mask: Bits | None = None
) -> NDArray[np.float64]:
    """Probabilities [V] of a row's next token, 0 for those that its parameters leave out.

    logits [V] are finite or minus infinity, and after all edits one of them is finite; mask [words] is the one of the
    sequence's grammar. A sequence at temperature 0 has no distribution: its token is the likeliest.
    """
    params = row.state.params
    values = edited(logits, row, mask)
    scaled = (values.astype(np.float64) - values.max()) / max(params.temperature, COLDEST)  # [V]
    weights = np.exp(scaled)
    if params.min_p > 0.0:
        weights[scaled < math.log(params.min_p)] = 0.0
    limited = 0 < params.top_k < len(values)
    if limited or params.top_p < 1.0:
        order = np.argsort(-values, kind="stable")
        if limited:
            weights[order[params.top_k :]] = 0.0
        if params.top_p < 1.0:
            running = np.cumsum(weights[order] / weights.sum())
            weights[order[1 + int(np.searchsorted(running, params.top_p)) :]] = 0.0
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities


def edited(logits: NDArray[np.float32], row: SampleRow, mask: Bits | None = None) -> NDArray[np.float32]:
    """Logits [V] after everything that comes before the temperature, as `edits.Edits` changes them."""
    state, params = row.state, row.state.params
    values = logits.astype(np.float32)  # a copy
    if mask is not None:
        allowed = np.zeros(
            len(values), dtype=np.bool_
        )  # a model may have logits for more ids than its masks know
        known = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(values)]
        allowed[: len(known)] = known
        values[~allowed] = -np.inf
    if params.allowed_token_ids is not None:
        refused = np.ones(len(values), dtype=np.bool_)
        refused[list(params.allowed_token_ids)] = False
        values[refused] = -np.inf
    values[list(state.banned)] = -np.inf
    if row.position < state.min_tokens:
        values[state.stop_ids] = -np.inf
    if params.logit_bias:
        values[list(params.logit_bias)] += np.array(list(params.logit_bias.values()), dtype=np.float32)
    subtracted = state.subtracted(row.assumed)
    if subtracted is not None:
        ids, amounts = subtracted
        own, penalty = values[ids], np.float32(params.repetition_penalty)
        values[ids] = np.where(own > 0, own / penalty, own * penalty) - amounts
    return values
