"""Weights of 8 bits: round to nearest, one scale an output feature or a group of input features."""

from __future__ import annotations

from torch import Tensor

from headrace.quant import grouped
from headrace.quant.grouped import Quantized

LEVELS = 255


def quantize(weight: Tensor, group: int | None = None, symmetric: bool = True) -> Quantized:
    """Codes of a matrix [rows, cols] of floats; `group` None: one scale an output feature.

    Symmetric: scale = max|w| / 127, codes 1..255 around 128. Else codes 0..255 over the group's own range.
    """
    groups, _ = grouped.grouped(weight, group)
    if not symmetric:
        return grouped.encode_with_zeros(groups, LEVELS, weight.shape[1])
    low, high = grouped.extremes(groups)
    return grouped.encode_symmetric(groups, high.maximum(-low) / 127.0, -127, 127, weight.shape[1])
