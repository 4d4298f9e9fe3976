"""How much a model loses for the error of each matrix.

One pass over the layers, with the weights of one layer in memory. Beside the texts as they are, a copy of them goes on
from each matrix with that matrix rounded coarsely. At the end the divergence of each copy says what such an error of
that matrix costs the model. The error of a finer choice costs as much less as its products' squared error is smaller:
for small errors the divergence is quadratic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.errors import ModelError
from headrace.models.loader import read_some
from headrace.models.stored import StoredWeights
from headrace.models.weights import Weights
from headrace.program.records import Program, WeightRef
from headrace.quantize.calibration.hessians import Hessians
from headrace.quantize.calibration.walk import Walk, segments
from headrace.quantize.matrices import check_finite, stacked

MEMORY = 512 << 20
"""Bytes that the hidden states of all copies may take."""
MOST_TOKENS = 2048
_SAMPLED_ROWS = 256
"""Rows of a matrix by which the errors of choices are compared."""
_ROWS = 128
"""Rows whose logits are held at once."""

Rounded = Callable[[Tensor, Tensor, str], Tensor]
"""From rows [R, C] of a matrix, its Hessian [C, C] and the name of a choice to the rows as they would become."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `first` to `last` of a weight, of all its experts, that are stored in a way of their own. choices: names of
    ways to store them. probe: one of these, coarse enough that its divergence is well above rounding."""

    name: str
    weight: WeightRef
    first: int
    last: int
    choices: tuple[str, ...] = ()
    probe: str = ""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """divergence: KL of the model, nats a token, with one part rounded to the probe. errors: the squared error of its
    products for each choice, as a part of the probe's."""

    divergence: float
    errors: Mapping[str, float]

    def loss(self, choice: str) -> float:
        """What the choice costs, in nats a token."""
        return self.divergence * self.errors[choice]


def measure(
    program: Program, stored: StoredWeights, texts: Sequence[Sequence[int]], parts: Sequence[Part], rounded: Rounded,
    shown: Callable[[int, int], None] | None = None,
) -> dict[str, Sensitivity]:  # fmt: skip
    """By the names of parts. Raises ModelError where weights, or what the model gives, are not finite."""
    by_layer: dict[int | None, list[Part]] = {}
    for one in parts:
        by_layer.setdefault(one.weight.layer, []).append(one)
    hidden = max(buffer.columns for op in program.ops for buffer in op.outputs if buffer.name == "stream")
    walk = Walk(program, _cut(texts, max(64, min(MOST_TOKENS, MEMORY // (4 * hidden * (len(parts) + 1))))))
    copies: dict[str, Walk] = {}
    errors: dict[str, dict[str, float]] = {}
    whole = segments(program)
    for number, segment in enumerate(whole):
        weights = read_some(stored, segment.weights, dtype=torch.float32)
        own = by_layer.get(segment.layer, [])
        hessians = Hessians({one.weight.name for one in own})
        if own:
            walk.observe(weights, hessians.watch)
        fresh: dict[str, Walk] = {}
        for one in own:
            check_finite(one.weight.name, stacked(weights, one.weight))
            rows = stacked(weights, one.weight)[:, one.first : one.last]
            kept = rows.clone()
            powers = list(hessians.of(one.weight.name))
            errors[one.name] = _errors(kept, powers, one, rounded)
            for each, power, into in zip(kept, powers, rows, strict=True):
                into.copy_(rounded(each, power, one.probe))
            fresh[one.name] = walk.fork()
            fresh[one.name].advance(weights)
            rows.copy_(kept)
        for one_walk in (walk, *copies.values()):
            one_walk.advance(weights)
        copies |= fresh
        if shown is not None:
            shown(number + 1, len(whole))
    weights = read_some(stored, walk.last_weights, dtype=torch.float32)
    divergences = _divergences(walk, {name: other.states(weights) for name, other in copies.items()}, weights)
    found = {}
    for name, divergence in divergences.items():
        if not math.isfinite(divergence + sum(errors[name].values())):
            raise ModelError(f"with {name} rounded the model gives infinite numbers: it cannot be measured")
        found[name] = Sensitivity(divergence, errors[name])
    return found


def _cut(texts: Sequence[Sequence[int]], most: int) -> list[Sequence[int]]:
    """So many tokens of the first texts."""
    found: list[Sequence[int]] = []
    for one in texts:
        if most < 2:
            break
        found.append(one[:most])
        most -= len(one)
    return found


def _errors(matrices: Tensor, powers: Sequence[Tensor], part: Part, rounded: Rounded) -> dict[str, float]:
    """Squared errors over that of the probe; of some rows of a large matrix."""
    step = max(1, matrices.shape[1] // _SAMPLED_ROWS)
    totals = dict.fromkeys(part.choices, 0.0)
    for matrix, power in zip(matrices, powers, strict=True):
        some = matrix[::step].contiguous()
        for choice in part.choices:
            lost = rounded(some, power, choice) - some
            totals[choice] += float(((lost @ power) * lost).sum())
    return {choice: max(total, 0.0) / max(totals[part.probe], 1e-30) for choice, total in totals.items()}


def _divergences(walk: Walk, others: Mapping[str, Tensor], weights: Weights) -> dict[str, float]:
    """Mean KL divergences of other final states from the walk's, nats a token."""
    states, totals = walk.states(weights), dict.fromkeys(others, 0.0)
    for first in range(0, len(states), _ROWS):
        rows = slice(first, first + _ROWS)
        one = walk.log_probabilities(states[rows], weights).double()
        likely = one.exp()
        for name, other in others.items():
            totals[name] += float(
                (likely * (one - walk.log_probabilities(other[rows], weights).double())).sum()
            )
    return {
        name: total / len(states) if total > 0 or math.isnan(total) else 0.0 for name, total in totals.items()
    }
