"""Scales of blocks that leave the least weighted error of their weights.

Three steps: the best scale (and minimum) of each group alone, out of a row of ranges, each refined by least squares; a
step for the block whose multiples come near to these; then each group's multiples and the block's step in turn, as long
as the error falls. llama.cpp searches in the same order (`make_qx_quants`, `make_qkx2_quants` of ggml-quants.c) but
ends after the second step.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from headrace.quantize.gguf.grids import Grid, Steps, half

_CHUNK = 1 << 20
"""Weights searched at once."""
_TRIES = 9
"""Ranges tried on each side of the whole one."""
_ROUNDS = 2
_SMALLEST = 1e-30
"""Weights below it are 0 beside any step that float16 holds, and the inverse of smaller ones may be infinite."""


def search(weight: Tensor, grid: Grid, importance: Tensor | None = None) -> Steps:
    """The scales of a matrix [R, C] whose rows are whole blocks.

    importance: of each column's squared error, [C]; None: all alike.
    """
    rows, columns = weight.shape
    step = max(1, _CHUNK // columns)
    flat = None if importance is None else importance.float().clamp(min=0)
    if flat is None or not bool(flat.sum() > 0):
        flat = torch.ones(columns)
    flat = flat / flat.mean() + 1e-6  # inputs that were always 0 still get near codes
    found = []
    for first in range(0, rows, step):
        some = weight[first : first + step].float()
        found.append(_search(torch.where(some.abs() < _SMALLEST, 0.0, some), grid, flat))

    def joined(name: str) -> Tensor | None:
        parts = [getattr(one, name) for one in found]
        return None if parts[0] is None else torch.cat(parts)

    d = joined("d")
    assert d is not None
    return Steps(grid, d, joined("minimum"), joined("scales"), joined("minima"))


def _search(weight: Tensor, grid: Grid, importance: Tensor) -> Steps:
    rows = len(weight)
    groups = weight.reshape(-1, grid.group)  # [N, g]
    counts = importance.reshape(-1, grid.group).repeat(rows, 1)
    if grid.zero is not None or grid.table is not None:
        scale, offset = _centred(groups, counts, grid), None
    else:
        scale, offset = _ranged(groups, counts, grid)
    if grid.scales is None:
        d = half(scale).reshape(rows, -1)
        return Steps(grid, d, None if offset is None else half(offset).reshape(rows, -1))
    found = _super(groups, counts, grid, scale, offset)
    shape = (rows, -1, grid.groups)
    return Steps(
        grid,
        found[0].reshape(rows, -1),
        None if found[1] is None else found[1].reshape(rows, -1),
        found[2].reshape(shape),
        None if found[3] is None else found[3].reshape(shape),
    )


# ---- One group by itself ----


def _centred(groups: Tensor, counts: Tensor, grid: Grid) -> Tensor:
    """The scale [N] of each group. The weight of largest magnitude lies at the end of the codes or near to it."""
    at = groups.abs().argmax(-1, keepdim=True)
    extreme = torch.gather(groups, 1, at)
    extreme = torch.where(extreme == 0, 1.0, extreme)
    best = torch.zeros(len(groups))
    most = torch.full((len(groups),), -1.0)
    ends = (grid.lowest, grid.highest) if grid.lowest != -grid.highest else (grid.lowest,)
    width = (grid.highest - grid.lowest) / 2
    for end, number in itertools.product(ends, range(-_TRIES, _TRIES + 1)):
        inverse = (end + 0.1 * number * min(1.0, width / 8)) / extreme
        codes = grid.nearest(groups * inverse)
        weighted = counts * codes
        along, square = (weighted * groups).sum(-1), (weighted * codes).sum(-1)
        gain = torch.where(square > 0, along * along / square, 0.0)  # what it takes from the squared error
        better = gain > most
        best = torch.where(better, torch.where(square > 0, along / square, 0.0), best)
        most = torch.where(better, gain, most)
    return best


def _ranged(groups: Tensor, counts: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """(scale, what is subtracted) [N] of each group: not less than 0 unless the grid is free."""
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    if not grid.free:
        low = low.clamp(max=0)
    high = torch.maximum(high, low)
    span = torch.where(high > low, high - low, 1.0)
    best = (span / grid.levels)[:, 0]
    offset = -low[:, 0]
    least = _error(groups, counts, grid, best, offset)
    total, along = counts.sum(-1), (counts * groups).sum(-1)
    for number in range(-_TRIES, 2 * _TRIES + 1):
        inverse = (grid.levels + 0.1 * number) / span
        codes = torch.round((groups - low) * inverse).clamp_(0, grid.levels)
        weighted = counts * codes
        first, square, both = weighted.sum(-1), (weighted * codes).sum(-1), (weighted * groups).sum(-1)
        whole = total * square - first * first
        scale = torch.where(whole > 0, (total * both - along * first) / whole, 0.0)
        least_squares = torch.where(whole > 0, (square * along - first * both) / whole, 0.0)
        if not grid.free:
            above = least_squares > 0
            scale = torch.where(above, torch.where(square > 0, both / square, 0.0), scale)
            least_squares = torch.where(above, 0.0, least_squares)
        scale = scale.clamp(min=0)
        error = _error(groups, counts, grid, scale, -least_squares)
        better = error < least
        best, offset = torch.where(better, scale, best), torch.where(better, -least_squares, offset)
        least = torch.where(better, error, least)
    return best, offset


# ---- Blocks of several groups ----


def _super(
    groups: Tensor, counts: Tensor, grid: Grid, scale: Tensor, offset: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """(d [B], minimum [B], scales [N], minima [N]) of B blocks with N groups."""
    assert grid.scales is not None
    size, blocks = grid.groups, len(groups) // grid.groups
    low, high = grid.scales
    weight = counts.sum(-1).reshape(blocks, size)
    d, scales = _multiples(scale.reshape(blocks, size), low, high, weight)
    minimum = minima = None
    if offset is not None:
        assert grid.minima is not None
        minimum, minima = _multiples(offset.reshape(blocks, size), 0, grid.minima, weight)

    def spread(steps: Tensor | None, factors: Tensor | None) -> Tensor | None:
        return None if steps is None or factors is None else (steps[:, None] * factors).reshape(-1)

    def error_of(own: Tensor, other: Tensor | None) -> Tensor:
        return _error(groups, counts, grid, own, other)

    for _ in range(_ROUNDS):
        by_scale = spread(d, scales)
        assert by_scale is not None
        least = error_of(by_scale, spread(minimum, minima))
        base, base_minima = scales, minima
        for one, other in itertools.product((-1, 0, 1), (-1, 0, 1) if minima is not None else (0,)):
            if one == other == 0:
                continue
            moved = (base + one).clamp(low, high)
            moved_minima = (
                None if base_minima is None else (base_minima + other).clamp(0, float(grid.minima or 0))
            )
            moved_scale = spread(d, moved)
            assert moved_scale is not None
            error = error_of(moved_scale, spread(minimum, moved_minima))
            better = (error < least).reshape(blocks, size)
            scales = torch.where(better, moved, scales)
            if minima is not None and moved_minima is not None:
                minima = torch.where(better, moved_minima, minima)
            least = torch.minimum(error, least)
        fitted = _fit(groups, counts, grid, d, minimum, scales, minima)
        whole, whole_minimum = spread(fitted[0], scales), spread(fitted[1], minima)
        assert whole is not None
        better = error_of(whole, whole_minimum).reshape(blocks, size).sum(-1) < least.reshape(
            blocks, size
        ).sum(-1)
        d = torch.where(better, fitted[0], d)
        if minimum is not None and fitted[1] is not None:
            minimum = torch.where(better, fitted[1], minimum)
    return d, minimum, scales.reshape(-1), None if minima is None else minima.reshape(-1)


def _multiples(numbers: Tensor, low: int, high: int, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(a step [B] that float16 holds, whole multiples [B, G]) near to numbers [B, G]."""
    at = numbers.abs().argmax(-1, keepdim=True)
    extreme = torch.gather(numbers, 1, at)
    end = float(high if low >= 0 else low)
    best = torch.zeros(len(numbers))
    least = torch.full((len(numbers),), float("inf"))
    for number in range(-4, 5):
        step = half(extreme[:, 0] / (end + 0.1 * number * (1 if end > 0 else -1)))
        error = (weight * (numbers - step[:, None] * _over(numbers, step, low, high)) ** 2).sum(-1)
        better = error < least
        best, least = torch.where(better, step, best), torch.where(better, error, least)
    return best, _over(numbers, best, low, high)


def _over(numbers: Tensor, step: Tensor, low: int, high: int) -> Tensor:
    inverse = torch.where(step == 0, 0.0, 1.0 / step)[:, None]
    return torch.round(numbers * inverse).clamp_(low, high)


def _fit(
    groups: Tensor, counts: Tensor, grid: Grid, d: Tensor, minimum: Tensor | None, scales: Tensor,
    minima: Tensor | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The steps of each block that are best by least squares for its codes as they are."""
    blocks = len(d)
    own = (d[:, None] * scales).reshape(-1)
    other = None if minimum is None or minima is None else (minimum[:, None] * minima).reshape(-1)
    numbers = grid.numbers(_codes(groups, grid, own, other)) * scales.reshape(-1, 1)
    weighted = counts * numbers

    def total(values: Tensor) -> Tensor:
        return values.reshape(blocks, -1).sum(-1)

    square, along = total(weighted * numbers), total(weighted * groups)
    if minimum is None or minima is None:
        return half(torch.where(square > 0, along / square, d)), None
    subtracted = minima.reshape(-1, 1).expand_as(groups)
    cross, apart = total(weighted * subtracted), total(counts * subtracted * subtracted)
    downward = total(counts * subtracted * groups)
    whole = square * apart - cross * cross
    fits = whole > 1e-12 * square * apart
    best = torch.where(fits, (along * apart - cross * downward) / whole, d)
    lower = torch.where(fits, (cross * along - square * downward) / whole, minimum)
    legal = (best > 0) & (lower >= 0)
    return half(torch.where(legal, best, d)), half(torch.where(legal, lower, minimum))


def _codes(groups: Tensor, grid: Grid, scale: Tensor, offset: Tensor | None) -> Tensor:
    inverse = torch.where(scale == 0, 0.0, 1.0 / scale)[:, None]
    return grid.codes((groups if offset is None else groups + offset[:, None]) * inverse)


def _error(groups: Tensor, counts: Tensor, grid: Grid, scale: Tensor, offset: Tensor | None) -> Tensor:
    """The weighted squared error [N] of each group with its nearest codes."""
    numbers = grid.numbers(_codes(groups, grid, scale, offset)) * scale[:, None]
    if offset is not None:
        numbers = numbers - offset[:, None]
    return (counts * (numbers - groups) ** 2).sum(-1)
