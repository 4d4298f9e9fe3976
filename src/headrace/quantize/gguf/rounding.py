"""Codes of matrices in blocks of GGUF's types: the nearest ones, or GPTQ's."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.quantize.gguf.grids import Blocks, Grid, Steps
from headrace.quantize.gguf.search import search
from headrace.quantize.rounding.gptq import BLOCK, DAMPING, inverse_factor


def nearest(weight: Tensor, grid: Grid, importance: Tensor | None = None) -> Blocks:
    """A matrix [R, C] with the nearest codes; importance: as in `search`."""
    steps = search(weight, grid, importance)
    groups = torch.arange(weight.shape[1]) // grid.group
    scale, offset = steps.scale()[:, groups], steps.offset()
    shifted = weight if offset is None else weight + offset[:, groups]
    codes = grid.codes(shifted * torch.where(scale == 0, 0.0, 1.0 / scale))
    return Blocks(steps, codes.to(torch.uint8))


def gptq_blocks(weight: Tensor, hessian: Tensor, grid: Grid, damping: float = DAMPING) -> Blocks:
    """A matrix [R, C] by GPTQ: see `gptq.gptq`. Scales of a block are searched when its first column is reached.

    An error of column j costs its square over the square of the j-th pivot of the inverse Hessian's factor, because the
    columns after it take up the rest: that is each column's importance in the search.
    """
    columns, size = weight.shape[1], grid.type.weights
    inverse = inverse_factor(hessian, damping).to(weight.dtype)
    importance = 1.0 / inverse.diagonal() ** 2
    rest = weight.T.contiguous()  # [C, R]: what each column has come to
    codes = torch.empty_like(rest, dtype=torch.uint8)
    found: list[Steps] = []
    width = max(size, BLOCK)
    for first in range(0, columns, width):
        last = min(first + width, columns)
        errors = torch.empty_like(rest[first:last])
        for place in range(first, last):
            if place % size == 0:
                own = slice(place, place + size)
                found.append(search(rest[own].T.contiguous(), grid, importance[own]))
                scales, offsets = found[-1].scale().T.contiguous(), found[-1].offset()
            number = place % size // grid.group
            scale = scales[number]
            shifted = rest[place] if offsets is None else rest[place] + offsets[:, number]
            code = grid.codes(shifted * torch.where(scale == 0, 0.0, 1.0 / scale))
            rounded = grid.numbers(code) * scale
            if offsets is not None:
                rounded = rounded - offsets[:, number]
            codes[place] = code.to(torch.uint8)
            error = (rest[place] - rounded) / inverse[place, place]
            rest[place + 1 : last].addr_(inverse[place, place + 1 : last], error, alpha=-1)
            errors[place - first] = error
        rest[last:].addmm_(inverse[first:last, last:].T, errors, alpha=-1)

    def joined(name: str) -> Tensor | None:
        parts = [getattr(one, name) for one in found]
        return None if parts[0] is None else torch.cat(parts, dim=1)

    d = joined("d")
    assert d is not None
    steps = Steps(grid, d, joined("minimum"), joined("scales"), joined("minima"))
    return Blocks(steps, codes.T.contiguous())
