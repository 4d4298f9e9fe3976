"""Types of a GGUF file's tensors within a budget, from what each costs the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace.errors import ConfigError
from headrace.gguf.types import TYPES
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.quantize.budget import Choice, allocate
from headrace.quantize.gguf.grids import GRIDS
from headrace.quantize.gguf.mixes import fitting
from headrace.quantize.gguf.rounding import nearest
from headrace.quantize.gguf.run import GGUFOptions, open_job
from headrace.quantize.sensitivity import Part, Sensitivity, measure

CHOICES = ("Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
_PROBE = "Q3_K"


@dataclass(frozen=True, slots=True)
class Budget:
    """Of one of the two: bits a weight of the matrices that become codes, or bytes of the whole file."""

    bits: float | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """What each tensor costs in each type."""

    parts: tuple[Part, ...]
    found: dict[str, Sensitivity]
    weights: dict[str, int]
    columns: dict[str, int]
    rest: int
    """Bytes of the file besides these tensors."""

    def choices(self, name: str) -> list[Choice]:
        """A type that stands in for another is there once."""
        usable = {fitting(type, self.columns[name]).name: type for type in reversed(CHOICES)}
        return [
            Choice(type, TYPES[type].size(self.weights[name]), self.found[name].loss(asked))
            for type, asked in usable.items()
        ]

    def choose(self, budget: Budget) -> tuple[tuple[str, str], ...]:
        """(tensor, type) of every part. Raises ConfigError where the budget is too small."""
        total = sum(self.weights.values())
        if budget.bits is not None:
            room = int(budget.bits * total / 8)
        else:
            assert budget.size is not None
            room = budget.size - self.rest
        rows = [self.choices(one.name) for one in self.parts]
        least = sum(min(one.size for one in row) for row in rows)
        if least > room:
            raise ConfigError(
                f"the smallest types need {8 * least / total:.2f} bits a weight and a file of {least + self.rest:,} "
                "bytes: give more --bits-per-weight or --size"
            )
        return tuple(
            (one.name, choice.name) for one, choice in zip(self.parts, allocate(rows, room), strict=True)
        )


def sensitivity_table(
    source: ModelSource, spec: ModelSpec, options: GGUFOptions, texts: Sequence[Sequence[int]],
    shown: Callable[[int, int], None] | None = None, num_threads: int | None = None,
) -> Table:  # fmt: skip
    """Raises as `quantize_gguf`, and ConfigError without texts."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if not texts:
        raise ConfigError("auto needs calibration texts")
    job = open_job(source, spec, replace(options, types=()))
    parts = [one for one in job.parts() if fitting(_PROBE, one.weight.columns).quantized]

    def rounded(rows: Tensor, hessian: Tensor, choice: str) -> Tensor:
        grid = GRIDS[fitting(choice, rows.shape[1]).name]
        return nearest(rows, grid, hessian.diagonal()).dequantize()

    with torch.inference_mode():
        found = measure(job.program, job.stored, texts, parts, CHOICES, _PROBE, rounded, shown)
    weights = {
        one.name: (one.last - one.first) * one.weight.columns * (one.weight.experts or 1) for one in parts
    }
    columns = {one.name: one.weight.columns for one in parts}
    return Table(tuple(parts), found, weights, columns, job.size_without(weights))
