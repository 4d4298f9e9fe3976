"""GPTQ (Frantar et al. 2022, https://arxiv.org/abs/2210.17323): columns are rounded one after the other, and those that
are left take up the error that each one makes in the product with the calibration inputs."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from headrace.quantize.rounding.scheme import Codes, Scheme, encode, made, ranges

BLOCK = 128
"""Columns whose errors reach the columns after them in one product; a multiple of the group where there are groups."""
DAMPING = 0.01
_SUMMED = 512
"""Columns of a Hessian that errors are summed over at once."""
_TRIES = 8

Order = Literal["static", "group"]
"""Columns in falling order of their inputs' power. static: the groups are those of the model's order, and their scales
are chosen before the first column. group: columns of similar power share a group, whose scales are chosen on the way;
the format stores the group of each column."""


def gptq(
    weight: Tensor, hessian: Tensor, scheme: Scheme, order: Order | None = None, damping: float = DAMPING
) -> Codes:
    """Codes of a matrix [R, C], in the arithmetic of its type.

    hessian: [C, C], the mean of x x^T over the inputs, times any factor. damping: what is added to its diagonal, as a
    part of the diagonal's mean; ten times as much at a time while the matrix is not positive definite. Inputs that were
    always 0 leave their weights to plain rounding. With `scheme.clip`, the search of a range weighs the square of a
    column's error by 1 / U_ii^2, U being the factor: what remains after the later columns have compensated. Inputs that
    were always 0 count nothing there.
    """
    columns, group = weight.shape[1], scheme.group
    power = hessian.diagonal()
    places = torch.arange(columns) if order is None else torch.argsort(power, descending=True, stable=True)
    ordered = hessian if order is None else hessian[places][:, places]
    inverse = inverse_factor(ordered, damping).to(weight.dtype)
    del ordered
    rest = weight.T[places].contiguous()  # [C, R]: what each column has come to
    if order == "group" or order is None:
        of_column = torch.arange(columns) // (group or columns)  # by place
    else:
        of_column = places // (group or columns)
    ahead = group is None or order == "static"
    known: dict[int, tuple[Tensor, Tensor]] = {}
    costs = torch.where(power[places] > 0, inverse.diagonal().square().reciprocal(), 0.0)  # by place
    if ahead:
        scales, zeros = ranges(weight, scheme, costs[torch.argsort(places)])
        known = {number: (scales[:, number], zeros[:, number]) for number in range(scales.shape[1])}

    codes = torch.empty_like(rest)
    size = BLOCK if group is None or ahead else group * max(1, BLOCK // group)
    numbers = of_column.tolist()
    for first in range(0, columns, size):
        last = min(first + size, columns)
        errors = torch.empty_like(rest[first:last])
        for place in range(first, last):
            number = numbers[place]
            if number not in known:
                assert group is not None
                own = rest[place : place + group].T.contiguous()
                one_scale, one_zero = ranges(own, scheme, costs[place : place + group])
                known[number] = (one_scale[:, 0], one_zero[:, 0])
            scale, zero = known[number]
            codes[place] = encode(rest[place], scale, zero, scheme.levels)
            error = (rest[place] - (codes[place] - zero) * scale) / inverse[place, place]
            rest[place + 1 : last].addr_(inverse[place, place + 1 : last], error, alpha=-1)
            errors[place - first] = error
        rest[last:].addmm_(inverse[first:last, last:].T, errors, alpha=-1)

    back = torch.argsort(places)
    group_of = of_column[back] if order == "group" and group is not None else None
    scales, zeros = (torch.stack([known[number][at] for number in range(len(known))], dim=1) for at in (0, 1))
    return made(scheme, codes[back].T.contiguous(), scales, zeros, group_of)


def inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """The upper Cholesky factor of the inverse, float64 [C, C]. At most two such matrices are in memory, as each is
    about 1 GB for the down projection of a model of 7B."""
    diagonal = hessian.diagonal().to(torch.float64, copy=True)
    dead = diagonal <= 0
    diagonal[dead] = 1.0
    mean = float(diagonal[~dead].mean()) if not bool(dead.all()) else 1.0
    for _ in range(_TRIES):
        diagonal += damping * mean
        factor = _factor_of_inverse(hessian, diagonal)
        if factor is not None:
            return factor
        damping *= 10.0
    # As plain rounding has it: no column knows of another.
    return torch.eye(len(hessian), dtype=torch.float64)


def _factor_of_inverse(hessian: Tensor, diagonal: Tensor) -> Tensor | None:
    """As `inverse_factor`, with another diagonal; None where it is not positive definite.

    With its rows and columns in reverse order the matrix is L L^T. The inverse of L in reverse order is upper
    triangular then, and is the factor: the inverse itself is never made.
    """
    matrix = hessian.to(torch.float64).flip(0, 1)
    matrix.diagonal().copy_(diagonal.flip(0))
    lower, failed = torch.linalg.cholesky_ex(matrix)
    del matrix
    if int(failed):
        return None
    _invert_lower(lower)
    factor: Tensor = lower.flip(0, 1)
    return factor


def _invert_lower(lower: Tensor) -> None:
    """Put its inverse in the place of a lower triangular matrix, by halves, so that nearly all work is products."""
    size = len(lower)
    if size <= BLOCK:
        unit = torch.eye(size, dtype=lower.dtype)
        lower.copy_(torch.linalg.solve_triangular(lower, unit, upper=False))
        return
    half = size // 2
    first, last, below = lower[:half, :half], lower[half:, half:], lower[half:, :half]
    _invert_lower(first)
    _invert_lower(last)
    below.copy_(last @ (below @ first)).neg_()


def relative_error(weight: Tensor, rounded: Tensor, hessian: Tensor | None) -> float:
    """|rounded x - weight x| / |weight x| over the calibration inputs x, whose mean x x^T is the Hessian; without one,
    of the weights themselves. Infinite where either is too large for the arithmetic."""
    lost, whole = (squared(one, hessian) for one in (rounded - weight, weight))
    if not math.isfinite(lost) or not math.isfinite(whole):
        return math.inf
    return max(0.0, lost / whole) ** 0.5 if whole > 0 else 0.0


def squared(weight: Tensor, hessian: Tensor | None) -> float:
    """The sum of the squares of the products of a matrix [R, C] with inputs whose x x^T is the Hessian; without one, of
    its weights. As the Hessian is symmetric, its blocks below the diagonal count as those above it."""
    if hessian is None:
        return float(weight.square().sum())
    power, columns, found = hessian.to(weight.dtype), weight.shape[1], 0.0
    for first in range(0, columns, _SUMMED):
        last = min(first + _SUMMED, columns)
        part = weight[:, first:last]
        found += float(((part @ power[first:last, first:last]) * part).sum())
        if last < columns:
            found += 2 * float(((weight[:, last:] @ power[last:, first:last]) * part).sum())
    return found
