"""Scales for codes that have been chosen: those of least error of the products, all groups of a row together."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.quantize.rounding.scheme import Codes, stored

_PRIOR = 0.01
"""How far scales are held to what they were, as a part of what a group alone would say: calibration inputs are few."""
_CHUNK = 1 << 18
"""Weights of the rows that are fitted at once: what is computed for each of their groups stays in the cache."""


def refit(weight: Tensor, codes: Codes, hessian: Tensor) -> Codes:
    """The codes of a matrix [R, C] with other scales, rounded as they are stored. hessian: [C, C].

    A row's error is quadratic in its scales s [G], one for each group of input features: with n the codes less their
    zeros, n_g those of one group, (n_g H n_h) s = n_g H w. A row whose error does not fall keeps its scales.
    """
    power, groups = hessian.to(weight.dtype), codes.groups()
    columns = weight.shape[1]
    order = None if codes.group_of is None else torch.argsort(groups, stable=True)
    sorted_power = power if order is None else power[order][:, order]
    size = codes.scheme.group or columns
    step = max(1, _CHUNK // columns)
    scales = codes.scales.clone()
    for first in range(0, len(weight), step):
        part = codes.rows(first, first + step)
        before = part.scales.to(weight.dtype)
        numbers = part.codes.to(weight.dtype) - part.zeros.to(weight.dtype)[:, groups]
        sides = numbers * (weight[first : first + step] @ power)
        if order is not None:
            numbers, sides = numbers[:, order], sides[:, order]
        products = _products(numbers, sorted_power, size)
        summed = _by_group(sides, size)
        diagonal = products.diagonal(dim1=1, dim2=2)
        prior = torch.where(diagonal > 0, _PRIOR * diagonal, 1.0)
        whole = (products + torch.diag_embed(prior)).double()
        found = torch.linalg.solve(whole, (summed + prior * before).double()).to(weight.dtype)
        found = stored(torch.where(found * before > 0, found, before), codes.scheme)
        better = _error(found, products, summed) < _error(before, products, summed)
        scales[first : first + step] = torch.where(better[:, None], found, before).to(scales.dtype)
    return Codes(codes.scheme, codes.codes, scales, codes.zeros, codes.group_of)


def _products(numbers: Tensor, power: Tensor, size: int) -> Tensor:
    """n_g H n_h of numbers [R, C] in groups of `size` columns, [R, G, G]."""
    rows, columns = numbers.shape
    count = -(-columns // size)
    found = numbers.new_zeros(rows, count, count)
    for group in range(count):
        first, last = group * size, min((group + 1) * size, columns)
        ahead = numbers[:, first:last] @ power[first:last, first:]
        found[:, group, group:] = _by_group(ahead.mul_(numbers[:, first:]), size)
        found[:, group:, group] = found[:, group, group:]
    return found


def _by_group(values: Tensor, size: int) -> Tensor:
    """Sums over the columns of each group, [R, G] of [R, C]."""
    missing = -values.shape[1] % size
    padded = torch.nn.functional.pad(values, (0, missing)) if missing else values
    sums: Tensor = padded.unflatten(1, (-1, size)).sum(-1)
    return sums


def _error(scales: Tensor, products: Tensor, sides: Tensor) -> Tensor:
    """Of each row, less what does not depend on the scales."""
    return torch.einsum("rg,rgh,rh->r", scales, products, scales) - 2 * (scales * sides).sum(-1)
