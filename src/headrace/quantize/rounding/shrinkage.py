"""Rows that shrink less.

Codes and ranges of least squared error shrink what they stand for: their error is orthogonal to the rounded products,
so that these, held against the exact ones, are smaller by about the square of the relative error. Such errors point the
same way in every layer, and add up where others cancel. A factor a row undoes half of it, which for scales of least
squares leaves the norm of the products as it was. docs/quantization.md has what it brings, and to which matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.quantize.rounding.scheme import Codes, stored

_CHUNK = 1 << 22
"""Weights of the rows that are multiplied at once."""
_MOST = 2.0
"""No row is taken to have lost more than that."""
_CARRIED = 2.0**-7
"""The most of what a scale has lost that the next one makes up for: two steps of bfloat16. Scales that float16 cannot
hold lose more, which is theirs alone."""


def rescaled(weight: Tensor, codes: Codes, hessian: Tensor | None = None) -> Codes:
    """The codes of a matrix [R, C] with scales times the row's factor, rounded as they are stored.

    What a scale loses when it is rounded, the next one of the row makes up for: the factors are close to 1, and
    neighbours among stored scales may be further apart.
    """
    factors = row_factors(weight, codes.dequantize().to(weight.dtype), hessian)
    scales = codes.scales.to(weight.dtype)
    left = torch.ones_like(factors)  # what rounding has left of the factor
    for group in range(scales.shape[1]):
        wanted = scales[:, group] * factors * left
        scales[:, group] = stored(wanted, codes.scheme)
        lost = torch.where(scales[:, group] == 0, 1.0, wanted / scales[:, group])
        left = lost.clamp(1 - _CARRIED, 1 + _CARRIED)
    return Codes(codes.scheme, codes.codes, scales.to(codes.scales.dtype), codes.zeros, codes.group_of)


def row_factors(weight: Tensor, rounded: Tensor, hessian: Tensor | None) -> Tensor:
    """The root of y y / (r y) of each row, [R], where y are the products of a matrix [R, C] with inputs, and r those of
    the rounded one.

    hessian: what the codes were chosen by: the mean of x x^T over the inputs x, [C, C], or its diagonal, [C], as if the
    inputs were independent; None: the products are the weights. Along the largest directions of a Hessian that codes
    did not see, their errors are noise.
    """
    power = None if hessian is None else hessian.to(weight.dtype)
    step = max(1, _CHUNK // weight.shape[1])
    found = []
    for first in range(0, len(weight), step):
        rows = weight[first : first + step]
        products = rows if power is None else rows * power if power.dim() == 1 else rows @ power
        whole, kept = (rows * products).sum(-1), (rounded[first : first + step] * products).sum(-1)
        factors = torch.where((whole > 0) & (kept > 0), whole / kept, 1.0)
        found.append(factors.clamp(1 / _MOST, _MOST).sqrt())
    return torch.cat(found)
