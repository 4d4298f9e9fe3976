"""What methods need of the inputs of matrices: the sum of x x^T, and the largest magnitude of each feature."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.errors import ModelError
from headrace.program.records import Op
from headrace.runner.torch_experts import Routing

PRODUCTS = ("linear", "experts")
"""Kinds of ops whose weights may become codes."""
LEAST_ROWS = 256
"""An expert that fewer rows were routed to is calibrated on the rows of all experts."""
_BLOCK = 512
"""Columns of a sum that are computed at once, above the diagonal; those below it are copies."""


class Hessians:
    """Watches ops; see `Walk.observe`. By the names of weights; tensors that share a product share one Hessian."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._sums: dict[str, Tensor] = {}  # [C, C], of experts [E, C, C]
        self._counts: dict[str, list[int]] = {}
        self._shared: set[str] = set()
        """Names whose experts with few rows have been given the inputs of all."""
        self._peaks: dict[str, Tensor] = {}  # [E, C]

    def watch(self, op: Op[Any], inputs: Sequence[Any]) -> None:
        if op.kind not in PRODUCTS or op.weights[0].name not in self._names:
            return
        weight, rows = op.weights[0], inputs[0]
        if op.kind == "linear":
            self.record(weight.name, [rows])
            return
        routing: Routing = inputs[1]
        if op.attributes.scaled:
            rows = rows * routing.row_weights[:, None]
        self.record(weight.name, rows.split(routing.counts))

    def of(self, name: str) -> Iterator[Tensor]:
        """The mean of x x^T [C, C] of a weight, or of each of its experts. Raises ModelError where it is not finite."""
        sums, counts = self.sums(name), self._counts[name]
        if name in self._shared:
            yield from (one / max(1, count) for one, count in zip(sums, counts, strict=True))
            return
        whole = sums.sum(0) / max(1, sum(counts)) if len(counts) > 1 else None
        for one, count in zip(sums, counts, strict=True):
            yield one / max(1, count) if whole is None or count >= LEAST_ROWS else whole

    def sums(self, name: str) -> Tensor:
        """The sums of x x^T [E, C, C], with one for a weight without experts; not to be changed. Raises as `of`."""
        sums = self._sums[name]
        if not bool(torch.isfinite(sums).all()):
            raise ModelError(
                f"the inputs of {name} are infinite or not numbers: the model cannot be calibrated"
            )
        return sums

    def peaks(self, name: str) -> Tensor:
        """The largest magnitude of each input feature, [E, C]. Experts with few rows have those of all experts."""
        if name in self._shared:
            return self._peaks[name]
        peaks, counts = self._peaks[name], torch.tensor(self._counts[name])
        few = (counts < LEAST_ROWS)[:, None]
        return torch.where(few, peaks.amax(0), peaks)

    @torch.inference_mode()
    def divide(self, name: str, factors: Tensor) -> None:
        """Have the inputs as if each feature had been divided by a factor, [C] or [E, C]."""
        if factors.dim() == 2:
            self._share(name)  # inputs of different experts can no longer be summed
        self._sums[name] /= factors[..., None, :] * factors[..., :, None]
        self._peaks[name] /= factors

    def _share(self, name: str) -> None:
        """Give experts with few rows the inputs of all experts."""
        if name in self._shared:
            return
        sums, counts = self._sums[name], self._counts[name]
        whole = sums.sum(0) / max(1, sum(counts))
        self._peaks[name] = self.peaks(name)
        for one, count in zip(sums, counts, strict=True):
            if len(counts) == 1 or count >= LEAST_ROWS:
                one /= max(1, count)
            else:
                one.copy_(whole)
        self._counts[name] = [1] * len(counts)
        self._shared.add(name)

    def record(self, name: str, parts: Sequence[Tensor]) -> None:
        """Count inputs [T, C] of a matrix, or of each of its experts."""
        columns = parts[0].shape[1]
        if name not in self._sums:
            self._sums[name] = torch.zeros(len(parts), columns, columns)
            self._counts[name] = [0] * len(parts)
            self._peaks[name] = torch.zeros(len(parts), columns)
        for number, part in enumerate(parts):
            if len(part):
                _add_products(self._sums[name][number], part)
                self._counts[name][number] += len(part)
                peaks = self._peaks[name][number]
                torch.maximum(peaks, part.abs().amax(0), out=peaks)


def _add_products(sums: Tensor, rows: Tensor) -> None:
    """Add x x^T of rows [T, C] to a symmetric matrix [C, C]."""
    columns = len(sums)
    for first in range(0, columns, _BLOCK):
        last = min(first + _BLOCK, columns)
        sums[:last, first:last].addmm_(rows[:, :last].T, rows[:, first:last])
        sums[first:last, :first] = sums[:first, first:last].T
