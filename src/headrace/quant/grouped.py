"""Weights as whole numbers with a scale for each group of input features: what every code format shares.

These functions are the specification that the native kernels are tested against, not the fast path.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_SCALE = 65504.0  # of float16


@dataclass(frozen=True, slots=True)
class Quantized:
    """A weight matrix [rows, cols] as codes: weight = scale * (code - zero).

    codes: uint8 [rows, cols]. scales: float16 [rows, groups]; negative ones are allowed.
    zeros: uint8 [rows, groups], or None where every zero is `middle`.
    group: input features that share a scale; the last group may be shorter.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    middle: int
    group: int


def grouped(weight: Tensor, group: int | None) -> tuple[Tensor, int]:
    """(float32 [rows, groups, group] padded with zeros at the end, group) of a matrix [rows, cols]."""
    rows, cols = weight.shape
    size = cols if group is None else min(group, cols)
    groups = -(-cols // size)
    padded = torch.zeros(rows, groups * size, dtype=torch.float32)
    padded[:, :cols] = weight.to(torch.float32)
    return padded.view(rows, groups, size), size


def extremes(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest value of each group [rows, groups, group], with 0 always between them."""
    return groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)


def round_scales(scales: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """(scales as float16, float32 factors that turn weights into codes: 1 / scale, 0 for a scale of 0).

    Codes are chosen against the rounded scale, so that rounding it adds almost no error. The scale of a group with a
    weight that is not finite is NaN, and its factor 0.
    """
    stored = scales.clamp(-LARGEST_SCALE, LARGEST_SCALE).to(torch.float16) + 0.0  # no -0
    stored = torch.where(groups.isfinite().all(-1), stored, torch.nan)
    rounded = stored.to(torch.float32)
    return stored, torch.where((rounded == 0) | rounded.isnan(), 0.0, 1.0 / rounded)


def encode_symmetric(groups: Tensor, scales: Tensor, low: int, high: int, cols: int) -> Quantized:
    """Codes clip(round(weight / scale), low, high) + high + 1, with `scales` [rows, groups]."""
    stored, factors = round_scales(scales, groups)
    middle = high + 1
    codes = torch.round(_scaled(groups, factors).clamp(low, high)) + middle
    return Quantized(_rows(codes, cols).to(torch.uint8), stored, None, middle, groups.shape[-1])


def encode_with_zeros(groups: Tensor, levels: int, cols: int) -> Quantized:
    """Codes 0..levels over the range of each group, widened to hold 0, with the code of 0 as its zero."""
    low, high = extremes(groups)
    stored, factors = round_scales((high - low) / levels, groups)
    zeros = torch.round(_scaled(-low[..., None], factors)[..., 0].clamp(max=levels))
    codes = torch.round(_scaled(groups, factors).clamp(-zeros[..., None], levels - zeros[..., None]))
    return Quantized(
        _rows(codes + zeros[..., None], cols).to(torch.uint8),
        stored,
        zeros.to(torch.uint8),
        (levels + 1) // 2,
        groups.shape[-1],
    )


def _scaled(groups: Tensor, factors: Tensor) -> Tensor:
    """[rows, groups, n] times [rows, groups]; 0 for what is not a number."""
    return (groups * factors[..., None]).nan_to_num(nan=0.0)


def dequantize(matrix: Quantized) -> Tensor:
    """float32 [rows, cols]: scale * (code - zero), exact up to the rounding of the product."""
    cols = matrix.codes.shape[1]
    scales = matrix.scales.to(torch.float32).repeat_interleave(matrix.group, dim=1)[:, :cols]
    if matrix.zeros is None:
        return scales * (matrix.codes.to(torch.float32) - matrix.middle)
    zeros = matrix.zeros.to(torch.float32).repeat_interleave(matrix.group, dim=1)[:, :cols]
    return scales * (matrix.codes.to(torch.float32) - zeros)


def linear(inputs: Tensor, matrix: Quantized, bias: Tensor | None = None) -> Tensor:
    """float32 [..., rows]: inputs [..., cols] times the dequantised matrix, plus bias [rows]."""
    return torch.nn.functional.linear(inputs.to(torch.float32), dequantize(matrix), bias)


def encode_activations(inputs: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """int8 activations as the kernels encode them: (codes int8 [rows, cols], scales float32 [rows, groups]).

    scale = max|x| / 127 of a row's group, codes rounded to nearest even: x is about scale * code.
    """
    cols = inputs.shape[1]
    groups, _ = grouped(inputs, group)
    top = groups.abs().amax(-1)
    factors = torch.where(top > 0, 127.0 / top, 0.0)
    return _rows(torch.round(groups * factors[..., None]), cols).to(torch.int8), top / 127.0


def decode_activations(codes: Tensor, scales: Tensor, group: int) -> Tensor:
    """float32 [rows, cols] of what `encode_activations` returned."""
    return codes.to(torch.float32) * scales.repeat_interleave(group, dim=1)[:, : codes.shape[1]]


def _rows(groups: Tensor, cols: int) -> Tensor:
    return groups.flatten(1)[:, :cols]
