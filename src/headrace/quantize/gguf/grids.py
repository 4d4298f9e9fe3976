"""The numbers that a block of a GGUF type can hold, as a search for the best ones needs them.

`models.gguf.blocks` says how the types are laid out; `models.gguf.encode` packs what is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.gguf.types import TYPES, BlockType
from headrace.models.gguf.encode import BlockFields, pack
from headrace.quant.coded import TABLES
from headrace.quant.grouped import LARGEST_SCALE


@dataclass(frozen=True, slots=True)
class Grid:
    """group: weights with a common scale. levels: the largest code; least: the smallest.

    zero: the code that stands for 0; None where weights have a minimum. scales: the least and the largest whole number
    of a group's scale in blocks of several groups. minima: the largest one of its minimum. free: a minimum may have
    either sign. table: a code's number where it is not code - zero.
    """

    type: BlockType
    group: int
    levels: int
    zero: int | None = None
    least: int = 0
    scales: tuple[int, int] | None = None
    minima: int | None = None
    free: bool = False
    table: tuple[float, ...] | None = None

    @property
    def groups(self) -> int:
        """Of a block."""
        return self.type.weights // self.group

    @property
    def lowest(self) -> float:
        """What a weight is in units of its scale at the least code."""
        if self.table is not None:
            return self.table[0]
        return float(self.least - (self.zero or 0))

    @property
    def highest(self) -> float:
        return self.table[-1] if self.table is not None else float(self.levels - (self.zero or 0))

    def codes(self, quotients: Tensor) -> Tensor:
        """The nearest codes, as floats, of weights plus their minimum over their scale."""
        if self.table is None:
            return (torch.round(quotients) + (self.zero or 0)).clamp_(self.least, self.levels)
        return _table_codes(self.table)[_half_steps(quotients)]

    def numbers(self, codes: Tensor) -> Tensor:
        """What codes stand for, in units of the scale."""
        if self.table is None:
            return codes - (self.zero or 0)
        return torch.tensor(self.table)[codes.long()]

    def nearest(self, quotients: Tensor) -> Tensor:
        """The nearest numbers."""
        if self.table is None:
            return self.numbers(self.codes(quotients))
        return torch.tensor(self.table)[_table_codes(self.table).long()][_half_steps(quotients)]


_REACH = 256
"""Tables hold whole numbers of less than half of this."""


def _half_steps(quotients: Tensor) -> Tensor:
    """Places in `_table_codes`."""
    return (quotients * 2).ceil_().clamp_(-_REACH, _REACH).to(torch.int32) + _REACH


@cache
def _table_codes(table: tuple[float, ...]) -> Tensor:
    """The nearest code of a rising table of whole numbers, by the quotient in halves, rounded up: what lies between two
    numbers is a multiple of a half."""
    numbers = torch.tensor(table)
    middles = (numbers[1:] + numbers[:-1]) / 2
    return torch.searchsorted(middles, torch.arange(-_REACH, _REACH + 1) / 2).float()


_IQ4 = tuple(TABLES["iq4"].tolist())

GRIDS: Mapping[str, Grid] = {
    one.type.name: one
    for one in (
        Grid(TYPES["Q4_0"], 32, 15, zero=8),
        Grid(TYPES["Q5_0"], 32, 31, zero=16),
        Grid(TYPES["Q8_0"], 32, 255, zero=128, least=1),
        Grid(TYPES["Q4_1"], 32, 15, free=True),
        Grid(TYPES["Q5_1"], 32, 31, free=True),
        Grid(TYPES["Q2_K"], 16, 3, scales=(0, 15), minima=15),
        Grid(TYPES["Q3_K"], 16, 7, zero=4, scales=(-32, 31)),
        Grid(TYPES["Q4_K"], 32, 15, scales=(0, 63), minima=63),
        Grid(TYPES["Q5_K"], 32, 31, scales=(0, 63), minima=63),
        Grid(TYPES["Q6_K"], 16, 63, zero=32, scales=(-128, 127)),
        Grid(TYPES["IQ4_NL"], 32, 15, table=_IQ4),
        Grid(TYPES["IQ4_XS"], 32, 15, table=_IQ4, scales=(-32, 31)),
    )
}


@dataclass(frozen=True, slots=True)
class Steps:
    """Scales of a matrix [R, C] of B blocks a row.

    d, minimum: float32 [R, B], exact in float16. scales, minima: whole numbers as floats, [R, B, groups]. minimum,
    minima: subtracted.
    """

    grid: Grid
    d: Tensor
    minimum: Tensor | None = None
    scales: Tensor | None = None
    minima: Tensor | None = None

    def scale(self) -> Tensor:
        """Of each group, float32 [R, groups of a row]."""
        return self._spread(self.d, self.scales)

    def offset(self) -> Tensor | None:
        """What each group's weights are less by, float32 [R, groups of a row]."""
        return None if self.minimum is None else self._spread(self.minimum, self.minima)

    def _spread(self, steps: Tensor, factors: Tensor | None) -> Tensor:
        each = steps[:, :, None]
        whole = each.expand(-1, -1, self.grid.groups) if factors is None else each * factors
        return whole.reshape(len(steps), -1)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [R, C] in blocks: its scales, and codes uint8 [R, C]."""

    steps: Steps
    codes: Tensor

    def dequantize(self) -> Tensor:
        """float32 [R, C]."""
        grid = self.steps.grid
        groups = torch.arange(self.codes.shape[1]) // grid.group
        weights = grid.numbers(self.codes.float()) * self.steps.scale()[:, groups]
        offset = self.steps.offset()
        return weights if offset is None else weights - offset[:, groups]

    def rescaled(self, factors: Tensor) -> Blocks:
        """The same codes of rows that are so many times as large, [R]; steps are rounded to float16."""
        steps = self.steps
        minimum = None if steps.minimum is None else half(steps.minimum * factors[:, None])
        return Blocks(replace(steps, d=half(steps.d * factors[:, None]), minimum=minimum), self.codes)

    def pack(self) -> NDArray[np.uint8]:
        """uint8 [R, bytes of a row], as the file holds them."""
        steps, type = self.steps, self.steps.grid.type
        rows = len(self.codes)
        minimum = None if steps.minimum is None else steps.minimum.reshape(-1, 1).numpy()
        if minimum is not None and steps.grid.free:
            minimum = -minimum
        fields = BlockFields(
            steps.d.reshape(-1, 1).numpy(),
            self.codes.reshape(-1, type.weights).numpy(),
            minimum,
            _whole(steps.scales, steps.grid.groups),
            _whole(steps.minima, steps.grid.groups),
        )
        return pack(fields, type).reshape(rows, -1)


def half(numbers: Tensor) -> Tensor:
    """The nearest float16 that is not infinite, as float32."""
    return numbers.clamp(-LARGEST_SCALE, LARGEST_SCALE).half().float()


def _whole(numbers: Tensor | None, groups: int) -> NDArray[np.int16] | None:
    return None if numbers is None else numbers.reshape(-1, groups).to(torch.int16).numpy()
