"""Gives bits to matrices where they help most: a choice for each, of least loss within a size. Exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Budget:
    """Of one of the two: bits a weight of the matrices that become codes, or bytes of the whole."""

    bits: float | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """rows: the choices of each matrix, or tensor, by name. weights: of all of them. rest: bytes of what else there
    is, about. whole: bytes of all files for some choices (name, choice); None: `rest` and the choices are all."""

    rows: Mapping[str, Sequence[Choice]]
    weights: int
    rest: int
    whole: Callable[[Sequence[tuple[str, str]]], int] | None = None

    def choose(self, budget: Budget) -> tuple[tuple[str, str], ...]:
        """(name, choice) of each row. Raises ConfigError where the budget is too small."""
        smallest = [min(row, key=lambda one: one.size) for row in self.rows.values()]
        least = sum(one.size for one in smallest)
        if budget.bits is not None:
            room = int(budget.bits * self.weights / 8)
        else:
            assert budget.size is not None
            room = budget.size - self.rest
        while room >= least:
            chosen = allocate(list(self.rows.values()), room)
            excess = 0 if budget.size is None else self._size(chosen) - budget.size
            if excess <= 0:
                return self._named(chosen)
            if room == least:
                break
            room = max(
                least, room - excess
            )  # headers and the config are longer for some choices than for others
        raise ConfigError(
            f"the smallest choices need {8 * least / self.weights:.2f} bits a weight, and {self._size(smallest):,} "
            "bytes in all: give more --bits-per-weight or --size"
        )

    def _named(self, choices: Sequence[Choice]) -> tuple[tuple[str, str], ...]:
        return tuple((name, choice.name) for name, choice in zip(self.rows, choices, strict=True))

    def _size(self, choices: Sequence[Choice]) -> int:
        """Bytes of all files."""
        if self.whole is not None:
            return self.whole(self._named(choices))
        return self.rest + sum(one.size for one in choices)


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
