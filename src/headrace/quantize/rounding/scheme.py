"""Codes for a matrix: which whole numbers, with a scale and a zero for each group of input features.

weight = scale * (code - zero), codes 0 to 2^bits - 1. What a code stands for is what the readers in
`models.quantized` compute, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headrace.quant.grouped import LARGEST_SCALE, extremes, grouped

BITS = (2, 3, 4, 8)
_CLIPS = 40
"""Ranges tried by the search for clipping, from the whole one down to half of it."""
_CLIP_TO = 0.5
_REFITS = 3
_CHUNK = 1 << 22
"""Weights searched at once."""
_WHOLE_BLOCK = 512
"""Inputs of larger groups count as independent of each other where their clipping is searched."""
SCALE_TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
"""Of stored scales, by the names of schemes."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """group: input features with a common scale; None: all of a row. symmetric: every zero is the middle code.

    clip: ranges are searched for the least squared error of the weights, or what it costs, as `ranges` says.
    scale: the type that scales are stored in. least_zero: the smallest zero; 1 where a format cannot tell 0 from
    2^bits. positive: no symmetric scale is below 0, and only weights that are clipped have the lowest code.
    """

    bits: int
    group: int | None
    symmetric: bool = True
    clip: bool = False
    scale: Literal["f16", "bf16", "f32"] = "f16"
    least_zero: int = 0
    positive: bool = False

    @property
    def levels(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix [R, C] as codes.

    codes: uint8 [R, C], input features in the model's order. scales: [R, G], as the scheme says. zeros: uint8 [R, G].
    group_of: int64 [C], the group of each input feature; None where they are in order.
    """

    scheme: Scheme
    codes: Tensor
    scales: Tensor
    zeros: Tensor
    group_of: Tensor | None = None

    def groups(self) -> Tensor:
        """int64 [C]: the group of each input feature."""
        columns = self.codes.shape[1]
        return _in_order(columns, self.scheme.group) if self.group_of is None else self.group_of

    def dequantize(self) -> Tensor:
        """float32 [R, C]."""
        groups = self.groups()
        numbers = self.codes.float() - self.zeros.float()[:, groups]
        return numbers * self.scales.float()[:, groups]

    def rows(self, first: int, last: int) -> Codes:
        part = slice(first, last)
        return Codes(self.scheme, self.codes[part], self.scales[part], self.zeros[part], self.group_of)


def ranges(weight: Tensor, scheme: Scheme, hessian: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(scales, zeros), [R, G] each in the weight's type, for a matrix [R, C]; scales as they are stored.

    The range of a group holds all of its weights and 0; with `clip`, that part of it which leaves the least error: of
    the weights, or with a Hessian [C, C] of the products of the group's inputs, or [C], what the square of each error
    costs.
    Unless it is to be positive, a symmetric scale has the sign that puts the weight of largest magnitude on code 0.
    """
    rows, columns = weight.shape
    size = columns if scheme.group is None else min(scheme.group, columns)
    if columns % size:
        groups, size = grouped(weight, scheme.group)
        groups = groups.to(weight.dtype)
    else:
        groups = weight.reshape(rows, -1, size)
    step = max(1, _CHUNK // columns)
    power = None if hessian is None else _blocks(hessian.to(weight.dtype), groups.shape[1], size)
    found = [_ranges(groups[first : first + step], scheme, power) for first in range(0, rows, step)]
    return torch.cat([scales for scales, _ in found]), torch.cat([zeros for _, zeros in found])


def encode(weight: Tensor, scales: Tensor, zeros: Tensor, levels: int) -> Tensor:
    """The nearest codes, as numbers of the weight's type. Scales and zeros have the weight's shape, or broadcast."""
    steps = torch.where(scales == 0, 0.0, 1.0 / scales)
    return (torch.round(weight * steps) + zeros).clamp(0, levels)


def rtn(weight: Tensor, scheme: Scheme, hessian: Tensor | None = None) -> Codes:
    """Round each weight of [R, C] to the nearest code, in `ranges`."""
    scales, zeros = ranges(weight, scheme, hessian)
    groups = _in_order(weight.shape[1], scheme.group)
    codes = encode(weight, scales[:, groups], zeros[:, groups], scheme.levels)
    return made(scheme, codes, scales, zeros)


def made(
    scheme: Scheme, codes: Tensor, scales: Tensor, zeros: Tensor, group_of: Tensor | None = None
) -> Codes:
    """Codes out of numbers of a float type."""
    return Codes(
        scheme, codes.to(torch.uint8), scales.to(SCALE_TYPES[scheme.scale]), zeros.to(torch.uint8), group_of
    )


def _in_order(columns: int, group: int | None) -> Tensor:
    return torch.zeros(columns, dtype=torch.int64) if group is None else torch.arange(columns) // group


def _blocks(hessian: Tensor, count: int, size: int) -> Tensor:
    """[G, size, size], those of the diagonal; of large groups, or a vector, the diagonal alone, [G, size]."""
    padded = torch.zeros(count * size, dtype=hessian.dtype)
    padded[: len(hessian)] = hessian if hessian.dim() == 1 else hessian.diagonal()
    if size > _WHOLE_BLOCK or hessian.dim() == 1:
        return padded.view(count, size)
    blocks = torch.diag_embed(padded.view(count, size))
    for number in range(count):
        block = hessian[number * size : (number + 1) * size, number * size : (number + 1) * size]
        blocks[number, : len(block), : len(block)] = block
    return blocks


def _ranges(groups: Tensor, scheme: Scheme, power: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of groups [R, G, size]."""
    scales, zeros = _whole_range(groups, scheme, 1.0)
    if not scheme.clip:
        return scales, zeros
    least = _error(groups, scales, zeros, scheme, power)
    for number in range(1, _CLIPS + 1):
        part = 1.0 - (1.0 - _CLIP_TO) * number / _CLIPS
        other, others = _whole_range(groups, scheme, part)
        error = _error(groups, other, others, scheme, power)
        better = error < least
        scales, zeros = torch.where(better, other, scales), torch.where(better, others, zeros)
        least = torch.where(better, error, least)
    for _ in range(_REFITS):
        other = _refit(groups, scales, zeros, scheme, power)
        error = _error(groups, other, zeros, scheme, power)
        better = error < least
        scales, least = torch.where(better, other, scales), torch.where(better, error, least)
    return scales, zeros


def _refit(groups: Tensor, scales: Tensor, zeros: Tensor, scheme: Scheme, power: Tensor | None) -> Tensor:
    """The scales of least error for the codes that those given choose, with their signs."""
    numbers = encode(groups, scales[..., None], zeros[..., None], scheme.levels) - zeros[..., None]
    weighed = _weighed(numbers, power)
    whole = (weighed * numbers).sum(-1)
    found = torch.where(whole > 0, (weighed * groups).sum(-1) / whole, scales)
    return stored(torch.where(found * scales > 0, found, scales), scheme)


def _whole_range(groups: Tensor, scheme: Scheme, part: float) -> tuple[Tensor, Tensor]:
    """Scales and zeros of ranges that are so large a part of the whole ones."""
    if scheme.symmetric:
        low, high = groups.amin(-1), groups.amax(-1)
        if scheme.positive:
            scales = stored(torch.maximum(-low, high) * (part / (scheme.middle - 1)), scheme)
            return scales, torch.full_like(scales, scheme.middle)
        extreme = torch.where(-low >= high, low, high) * part
        scales = stored(-extreme / scheme.middle, scheme)
        return scales, torch.full_like(scales, scheme.middle)
    low, high = (one * part for one in extremes(groups))
    if scheme.least_zero:
        low = torch.minimum(low, -high * scheme.least_zero / (scheme.levels - scheme.least_zero))
    scales = stored((high - low) / scheme.levels, scheme)
    steps = torch.where(scales == 0, 0.0, 1.0 / scales)
    return scales, torch.round(-low * steps).clamp(scheme.least_zero, scheme.levels)


def stored(scales: Tensor, scheme: Scheme) -> Tensor:
    """Rounded to the stored type, before codes are chosen: so rounding a scale adds almost no error. One whose inverse
    is infinite is 0."""
    limited = scales.clamp(-LARGEST_SCALE, LARGEST_SCALE)
    rounded = limited.to(SCALE_TYPES[scheme.scale]).to(scales.dtype) + 0.0  # no -0
    return torch.where(rounded.abs() < torch.finfo(torch.float32).tiny, 0.0, rounded)


def _error(groups: Tensor, scales: Tensor, zeros: Tensor, scheme: Scheme, power: Tensor | None) -> Tensor:
    """The squared error of each group's weights, or of its products with inputs of that power, [R, G]."""
    scales, zeros = scales[..., None], zeros[..., None]
    difference = (encode(groups, scales, zeros, scheme.levels) - zeros) * scales - groups
    return (_weighed(difference, power) * difference).sum(-1)


def _weighed(values: Tensor, power: Tensor | None) -> Tensor:
    """Groups [R, G, size] times the power of their inputs, as `_blocks` has it."""
    if power is None:
        return values
    if power.dim() == 2:
        return values * power
    weighed: Tensor = (values.transpose(0, 1) @ power).transpose(0, 1)  # a product for each group
    return weighed
