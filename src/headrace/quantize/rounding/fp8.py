"""Weights as 8-bit floats, E4M3: 4 bits of exponent, 3 of mantissa, no infinity (Micikevicius et al. 2022,
https://arxiv.org/abs/2209.05433)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headrace.quantize.rounding.scheme import SCALE_TYPES

LARGEST = 448.0
BLOCK = 128
"""Rows and columns with a common scale, of blocks."""
_TRIES = 24
_LEAST_PART = 0.7

Strategy = Literal["tensor", "channel", "block"]
STRATEGIES: tuple[Strategy, ...] = ("tensor", "channel", "block")


@dataclass(frozen=True, slots=True)
class FloatScheme:
    """strategy: which weights have a common scale: those of a stored tensor, of an output feature, or of 128 x 128.

    clip: scales are searched for the least squared error of the products. static: inputs have one scale, calibrated.
    dynamic: each input gets its own when it is there. Without either, readers do not round inputs. scale: the type that
    scales of weights are stored in.
    """

    strategy: Strategy
    clip: bool = False
    static: bool = False
    dynamic: bool = False
    scale: Literal["bf16", "f32"] = "f32"

    @property
    def bits(self) -> int:
        return 8

    @property
    def group(self) -> int | None:
        """Input features with a common scale."""
        return BLOCK if self.strategy == "block" else None


@dataclass(frozen=True, slots=True)
class FloatCodes:
    """A matrix [R, C] as 8-bit floats. codes: uint8 [R, C], their bits. scales: [R, G], those of each row even where
    rows share them. input_scale: that of the inputs, if it is calibrated."""

    scheme: FloatScheme
    codes: Tensor
    scales: Tensor
    input_scale: float | None = None

    def dequantize(self) -> Tensor:
        """float32 [R, C]."""
        numbers = self.codes.view(torch.float8_e4m3fn).float()
        return numbers * _wide(self.scales.float(), self.scheme.group, numbers.shape[1])

    def rows(self, first: int, last: int) -> FloatCodes:
        part = slice(first, last)
        return FloatCodes(self.scheme, self.codes[part], self.scales[part], self.input_scale)


def encode_floats(
    weight: Tensor, hessian: Tensor | None, scheme: FloatScheme, parts: tuple[int, ...], peak: float | None
) -> FloatCodes:
    """The nearest codes of a matrix [R, C], whose stored tensors have so many rows each.

    hessian: [C, C], whose diagonal weighs errors where scales are searched; None: all alike. peak: the largest
    magnitude of the inputs, for their scale.
    """
    power = weight.new_ones(weight.shape[1]) if hessian is None else hessian.diagonal().to(weight.dtype)
    found = [_encode(part, power, scheme) for part in weight.split(list(parts))]
    codes, scales = (torch.cat([one[at] for one in found]) for at in (0, 1))
    return FloatCodes(scheme, codes, scales, None if peak is None else max(peak, 2.0**-20) / LARGEST)


def _encode(weight: Tensor, power: Tensor, scheme: FloatScheme) -> tuple[Tensor, Tensor]:
    """(codes, scales of each row) of one stored tensor."""
    columns = weight.shape[1]
    largest = _reduced(weight.abs(), scheme, torch.amax)
    scales = _stored(largest / LARGEST, scheme)
    if not scheme.clip:
        return _codes(weight, scales, scheme), scales
    least = torch.full_like(scales, torch.inf)
    best = scales
    for number in range(_TRIES + 1):
        part = 1.0 - (1.0 - _LEAST_PART) * number / _TRIES
        tried = _stored(largest * (part / LARGEST), scheme)
        numbers = _codes(weight, tried, scheme).view(torch.float8_e4m3fn).to(weight.dtype)
        lost = (numbers * _wide(tried.to(weight.dtype), scheme.group, columns) - weight).square() * power
        error = _reduced(lost, scheme, torch.sum)
        better = error < least
        best, least = torch.where(better, tried, best), torch.where(better, error, least)
    return _codes(weight, best, scheme), best


def _codes(weight: Tensor, scales: Tensor, scheme: FloatScheme) -> Tensor:
    wide = _wide(scales.to(weight.dtype), scheme.group, weight.shape[1])
    numbers = torch.where(wide == 0, 0.0, weight / wide).clamp(-LARGEST, LARGEST)
    return numbers.to(torch.float8_e4m3fn).view(torch.uint8)


def _stored(scales: Tensor, scheme: FloatScheme) -> Tensor:
    return scales.to(SCALE_TYPES[scheme.scale])


def _wide(scales: Tensor, group: int | None, columns: int) -> Tensor:
    """[R, C], or what broadcasts to it, of scales [R, G]."""
    return scales if group is None else scales.repeat_interleave(group, dim=1)[:, :columns]


def _reduced(values: Tensor, scheme: FloatScheme, reduce: Callable[..., Tensor]) -> Tensor:
    """The largest or the sum of those with a common scale, for each row: [R, G] of [R, C]."""
    rows, columns = values.shape
    if scheme.strategy == "tensor":
        return reduce(values.flatten(), 0).expand(rows, 1)
    if scheme.strategy == "channel":
        return reduce(values, 1)[:, None]
    padded = values.new_zeros(-(-rows // BLOCK) * BLOCK, -(-columns // BLOCK) * BLOCK)
    padded[:rows, :columns] = values
    found = reduce(padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)), (1, 3))
    return found.repeat_interleave(BLOCK, dim=0)[:rows]
