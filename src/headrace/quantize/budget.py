"""Gives bits to matrices where they help most: a choice for each, of least loss within a size. Exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to store a matrix. size: in bytes. loss: what it adds to the whole, of any unit."""

    name: str
    size: int
    loss: float


def allocate(table: Sequence[Sequence[Choice]], budget: int) -> list[Choice]:
    """One choice of each row of the table, whose losses sum to the least that `budget` bytes allow.

    Dynamic programming over all sums of sizes that are not worse than a smaller one. Raises ConfigError where even the
    smallest choices need more.
    """
    least = sum(min(one.size for one in row) for row in table)
    if least > budget:
        raise ConfigError(f"the smallest choices need {least:,} bytes, and {budget:,} are allowed")
    sizes, losses = np.zeros(1, dtype=np.int64), np.zeros(1)
    room = budget - least  # what may be used above the smallest choices
    steps: list[
        tuple[NDArray[np.int64], NDArray[np.int64]]
    ] = []  # of each state: its choice, the state before it
    for row in table:
        base = min(one.size for one in row)
        extra = np.array([one.size - base for one in row], dtype=np.int64)
        total = (sizes[:, None] + extra).ravel()
        loss = (losses[:, None] + np.array([one.loss for one in row])).ravel()
        fits = np.flatnonzero(total <= room)
        order = fits[np.lexsort((loss[fits], total[fits]))]
        best = np.minimum.accumulate(loss[order])
        better = np.concatenate(([True], loss[order][1:] < best[:-1]))
        kept = order[better]
        sizes, losses = total[kept], loss[kept]
        steps.append((kept % len(row), kept // len(row)))
    state = len(losses) - 1  # losses fall while sizes rise
    found = []
    for row, (choice, before) in zip(reversed(table), reversed(steps), strict=True):
        found.append(row[int(choice[state])])
        state = int(before[state])
    return found[::-1]
