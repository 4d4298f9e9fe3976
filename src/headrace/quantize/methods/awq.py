"""AWQ (Lin et al. 2023, https://arxiv.org/abs/2306.00978): features with large inputs are scaled up before the matrices
that read them are rounded, so that their weights lose less."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import repeat

import torch
from torch import Tensor

from headrace.models.weights import Weights
from headrace.program.records import WeightRef
from headrace.quantize.calibration.hessians import Hessians
from headrace.quantize.matrices import stacked
from headrace.quantize.rounding.gptq import squared
from headrace.quantize.rounding.refit import refit
from headrace.quantize.rounding.scheme import Codes, Scheme, encode, ranges, rtn
from headrace.quantize.transforms.folds import Fold

GRID = 20
"""Exponents tried, from 0 to 1."""
_WORK = 1 << 33
"""Multiplications of one trial with a matrix, about; trials are made with some of its rows."""
_MOST_ROWS, _LEAST_ROWS = 1024, 64
_SMALLEST = 1e-4


def awq_factors(
    fold: Fold,
    weights: Weights,
    inputs: Hessians,
    coded: Collection[WeightRef],
    schemes: Callable[[WeightRef], Scheme],
) -> Tensor:
    """[F], or [E, F]: what the features of a fold are to be divided by, for the least error of the products.

    coded: those of the readers that become codes, in the schemes that the function gives. The trials are x^a and
    x^a / w^(1-a), where x is the root of a feature's mean square, w the mean magnitude of its weights as parts of the
    largest one in their groups.
    """
    readers = [(reader, replace(schemes(reader), clip=False)) for reader in fold.readers if reader in coded]
    if fold.by_expert:
        experts = zip(
            *(
                zip(stacked(weights, one), inputs.of(one.name), repeat(scheme), strict=False)
                for one, scheme in readers
            ),
            strict=True,
        )
        return torch.stack([_search(fold, trials) for trials in experts])
    trials = [
        (matrix, hessian, scheme)
        for reader, scheme in readers
        for matrix, hessian in zip(stacked(weights, reader), inputs.sums(reader.name), strict=True)
    ]
    return _search(fold, trials)


def awq(weight: Tensor, hessian: Tensor, scheme: Scheme) -> Codes:
    """The nearest codes of a matrix [R, C], in ranges that are clipped for the least error of the products; then the
    scales of least error for these codes."""
    return refit(weight, rtn(weight, replace(scheme, clip=True), hessian), hessian)


def _search(fold: Fold, trials: Sequence[tuple[Tensor, Tensor, Scheme]]) -> Tensor:
    """[F], for matrices [R, C] with the power of their inputs [C, C], and their schemes."""
    power = sum(hessian.diagonal() for _, hessian, _ in trials)
    assert isinstance(power, Tensor)
    inputs = fold.gather(power).sqrt().clamp(min=_SMALLEST * float(power.max()) ** 0.5)
    sampled = [(_sample(matrix, len(trials)), hessian, scheme) for matrix, hessian, scheme in trials]
    sizes = torch.cat([_relative(matrix, scheme) for matrix, _, scheme in sampled]).mean(0)
    sizes = fold.gather(sizes).clamp(min=_SMALLEST)
    best, least = torch.ones_like(inputs), torch.inf
    for number in range(2 * GRID + 1):
        exponent = (number + 1) // 2 / GRID  # 0 once, then each with and without the weights' sizes
        factors = inputs**exponent
        if number % 2:
            factors = factors / sizes ** (1.0 - exponent)
        factors = factors / (factors.max() * factors.min()).sqrt()
        columns = fold.spread(factors)
        if not bool(torch.isfinite(factors).all()) or not bool((factors > 0).all()):
            continue
        error = sum(_error(matrix, hessian, columns, scheme) for matrix, hessian, scheme in sampled)
        if error < least:
            best, least = factors, error
    return best


def _error(matrix: Tensor, hessian: Tensor, columns: Tensor, scheme: Scheme) -> float:
    """The squared error of products with rounded, scaled weights."""
    scaled = matrix * columns
    scales, zeros = ranges(scaled, scheme)
    size = matrix.shape[1] // scales.shape[1]
    scales, zeros = (one.repeat_interleave(size, dim=1) for one in (scales, zeros))
    lost = (encode(scaled, scales, zeros, scheme.levels) - zeros) * scales / columns - matrix
    return squared(lost, hessian)


def _relative(matrix: Tensor, scheme: Scheme) -> Tensor:
    """Magnitudes as parts of the largest one in their group, [R, C]."""
    groups = matrix.abs().unflatten(1, (-1, scheme.group or matrix.shape[1]))
    relative: Tensor = groups / groups.amax(-1, keepdim=True).clamp(min=torch.finfo(matrix.dtype).tiny)
    return relative.flatten(1)


def _sample(matrix: Tensor, among: int) -> Tensor:
    """Some rows of a matrix, one `among` so many."""
    rows, columns = matrix.shape
    count = min(_MOST_ROWS, max(_LEAST_ROWS, _WORK // (columns * columns * among)))
    if rows <= count:
        return matrix
    chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(0))[:count]
    return matrix[chosen.sort().values]
