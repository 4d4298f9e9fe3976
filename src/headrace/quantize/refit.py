"""Scales for codes that have been chosen: those of least error of the products, all groups of a row together."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.quantize.scheme import Codes, stored

_PRIOR = 0.01
"""How far scales are held to what they were, as a part of what a group alone would say: calibration inputs are few."""
_CHUNK = 1 << 23
"""Numbers of the equations of so many rows at once."""


def refit(weight: Tensor, codes: Codes, hessian: Tensor) -> Codes:
    """The codes of a matrix [R, C] with other scales, rounded as they are stored. hessian: [C, C].

    A row's error is quadratic in its scales s [G], one for each group of input features: with n the codes less their
    zeros, n_g those of one group, (n_g H n_h) s = n_g H w. A row whose error does not fall keeps its scales.
    """
    power, groups = hessian.to(weight.dtype), codes.groups()
    count = codes.scales.shape[1]
    columns = [(groups == group).nonzero()[:, 0] for group in range(count)]
    step = max(1, _CHUNK // max(count * count, weight.shape[1]))
    scales = codes.scales.clone()
    for first in range(0, len(weight), step):
        part = codes.rows(first, first + step)
        own, before = weight[first : first + step], part.scales.to(weight.dtype)
        numbers = part.codes.to(weight.dtype) - part.zeros.to(weight.dtype)[:, groups]
        sides = _by_group(numbers * (own @ power), groups, count)  # [r, G]
        products = torch.stack(
            [_by_group(numbers[:, at] @ power[at] * numbers, groups, count) for at in columns], dim=1
        )  # [r, G, G]
        diagonal = products.diagonal(dim1=1, dim2=2)
        prior = torch.where(diagonal > 0, _PRIOR * diagonal, 1.0)
        whole = (products + torch.diag_embed(prior)).double()
        found = torch.linalg.solve(whole, (sides + prior * before).double()).to(weight.dtype)
        found = stored(torch.where(found * before > 0, found, before), codes.scheme)
        better = _error(found, products, sides) < _error(before, products, sides)
        scales[first : first + step] = torch.where(better[:, None], found, before).to(scales.dtype)
    return Codes(codes.scheme, codes.codes, scales, codes.zeros, codes.group_of)


def _by_group(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Sums over the columns of each group, [R, G] of [R, C]."""
    return values.new_zeros(len(values), count).index_add_(1, groups, values)


def _error(scales: Tensor, products: Tensor, sides: Tensor) -> Tensor:
    """Of each row, less what does not depend on the scales."""
    return torch.einsum("rg,rgh,rh->r", scales, products, scales) - 2 * (scales * sides).sum(-1)
