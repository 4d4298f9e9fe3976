"""Rows of feed-forward matrices that shrink less.

Codes and ranges of least squared error shrink what they stand for: their error is orthogonal to the rounded products,
so these are smaller than the exact ones by the square of the relative error, in each layer and for every input. Such
errors add up over the layers where others cancel, and gated products shrink twice. A factor a row undoes half of it:
then the norm of the products is as it was. Undoing all of it lowers the divergence of a model with little error a bit
more, but raises that of a model with much, whose logits are better a little too small than too large. Matrices of
attention are better off as they are: error in its scores makes them sharper, which shrinking makes up for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.program.records import WeightRef
from headrace.quantize.rounding.scheme import Codes, stored

_CHUNK = 1 << 22
"""Weights of the rows that are multiplied at once."""
_MOST = 2.0
"""A row that would grow or shrink more than that has lost its direction, and stays as it is."""


def grows(weight: WeightRef) -> bool:
    """Whether its rows are to shrink less."""
    return weight.part == "feed-forward"


def unshrunk(weight: Tensor, codes: Codes, hessian: Tensor | None = None) -> Codes:
    """The codes of a matrix [R, C] with scales that are longer by the row's factor, rounded as they are stored."""
    factors = row_factors(weight, codes.dequantize().to(weight.dtype), hessian)
    scales = stored(codes.scales.to(weight.dtype) * factors[:, None], codes.scheme).to(codes.scales.dtype)
    return Codes(codes.scheme, codes.codes, scales, codes.zeros, codes.group_of)


def row_factors(weight: Tensor, rounded: Tensor, hessian: Tensor | None) -> Tensor:
    """The root of y y / (r y) of each row, [R], where y are the products of a matrix [R, C] with inputs, and r those of
    the rounded one. hessian: the mean of x x^T over the inputs x, [C, C], or its diagonal, [C]; None: the products are
    the weights."""
    power = None if hessian is None else hessian.to(weight.dtype)
    step = max(1, _CHUNK // weight.shape[1])
    found = []
    for first in range(0, len(weight), step):
        rows = weight[first : first + step]
        if power is None:
            products = rows
        else:
            products = rows @ power if power.dim() == 2 else rows * power
        whole, kept = (rows * products).sum(-1), (rounded[first : first + step] * products).sum(-1)
        factors = whole / torch.where(kept > 0, kept, 1.0)
        usual = (kept > 0) & (factors > 1 / _MOST) & (factors < _MOST)
        found.append(torch.where(usual, factors, 1.0).sqrt())
    return torch.cat(found)
