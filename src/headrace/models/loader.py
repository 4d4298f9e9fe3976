"""Makes the torch path's weights, from a checkpoint or at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.models.families import weight_names
from headrace.models.floats import to_dtype, to_float32
from headrace.models.random_weights import RandomTensors
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights, open_weights
from headrace.models.weights import Progress, Projection, Weights, check_present, make_weights
from headrace.program.lower import lower
from headrace.program.records import Program, WeightRef

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""Compute dtypes by the name that options and specs use."""


def load_weights(
    source: ModelSource,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    seed: int = 0,
    progress: Progress | None = None,
) -> Weights:
    """The weights of a resolved model: read from its files, or random with `seed` for a shape.

    Raises CheckpointError, naming the tensor, where the checkpoint does not hold what `spec` needs.
    """
    if source.path is None:
        return random_weights(spec, dtype=dtype, device=device, seed=seed)
    return read_weights(open_weights(source, spec), spec, dtype=dtype, device=device, progress=progress)


def read_weights(
    stored: StoredWeights,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Weights:
    """Copy every tensor into its matrix, decoding codes and converting to `dtype` on the way, one tensor at a time.

    `open_weights` has checked their names, shapes and types.
    """
    program = lower(spec, weight_names(spec))
    return read_some(stored, program.weights, dtype=dtype, device=device, progress=progress)


def read_layers(
    stored: StoredWeights, program: Program, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Weights:
    """The weights of draft layers (`program.lower_layers`), from files that may hold other tensors, too."""
    check_present(stored.checkpoint, program, stored.coded)
    return read_some(stored, program.weights, dtype=dtype, device=device)


def read_some(
    stored: StoredWeights,
    weights: Sequence[WeightRef],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Weights:
    """As `read_weights`, of some weights of a program, such as those of a layer; their pages of the files are
    released, which else would count as memory in use."""
    done, total = 0, sum(1 for weight in weights for _ in weight.tensors())

    def fill(name: str, target: torch.Tensor) -> None:
        nonlocal done
        for rows, values in stored.floats(name):
            target[rows].copy_(as_tensor(values))
        if name not in stored.coded:
            stored.checkpoint.drop(name)
        done += 1
        if progress is not None:
            progress(done, total)

    return make_weights(weights, _TorchMaker(fill, dtype, torch.device(device)))


def random_weights(
    spec: ModelSpec, *, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0
) -> Weights:
    """Weights for measuring speed and for tests, see RandomTensors, as a checkpoint of `spec` could hold them."""
    tensors = RandomTensors(seed)
    stored = spec.stored_dtype if dtype == torch.float32 else "float32"

    def fill(name: str, target: torch.Tensor) -> None:
        kind = stored if target.dim() > 1 else "float32"
        tensors.fill(
            name, target.numel(), lambda part, values: _put(target, part, to_float32(to_dtype(values, kind)))
        )

    program = lower(spec, weight_names(spec))
    return make_weights(program.weights, _TorchMaker(fill, dtype, torch.device(device)))


def head_matrices(tensor: torch.Tensor, weight: WeightRef) -> torch.Tensor:
    """The matrices [H, O, I] of a weight of heads, from the tensor that holds them."""
    rows = weight.in_heads
    assert rows is not None
    picked = tensor.unflatten(0, (weight.experts, rows.each))[:, rows.first : rows.first + rows.count]
    matrices: torch.Tensor = picked.transpose(1, 2) if rows.transposed else picked
    return matrices.contiguous()


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """A view of a checkpoint array as a tensor; uint16 holds the bits of bfloat16."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _put(target: torch.Tensor, part: slice, values: NDArray[np.float32]) -> None:
    target.view(-1)[part] = torch.from_numpy(values).to(target.device)  # each target is whole rows


class _TorchMaker:
    """Plain tensors [O, I]; a `weights.Maker`. `fill` puts the tensor of that name into a part of a weight."""

    def __init__(
        self, fill: Callable[[str, torch.Tensor], None], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._fill = fill
        self._dtype, self._device = dtype, device

    def table(self, weight: WeightRef) -> torch.Tensor:
        return self._stacked(weight)

    def vector(self, weight: WeightRef) -> torch.Tensor:
        vector = self._stacked(weight)
        vector = vector if weight.factor == 1.0 else vector * weight.factor
        return vector + weight.offset if weight.offset else vector

    def matrix(self, weight: WeightRef) -> Projection:
        if weight.in_heads is not None:
            (name, shape), *_ = weight.tensors()
            tensor = self._empty(*shape)
            self._fill(name, tensor)
            return Projection(
                head_matrices(tensor, weight)
            )  # one copy: a view would keep the rest of the tensor
        if weight.experts is not None:
            return self._experts(weight)
        bias = None
        if weight.biases:
            bias = self._empty(weight.rows)
            self._fill_parts(weight, weight.biases, bias)
        return Projection(self._stacked(weight), bias)

    def _experts(self, weight: WeightRef) -> Projection:
        """[E, O, I], and the bias [E, O]."""
        assert weight.experts is not None
        stacked = self._empty(weight.experts, *weight.shape)
        bias = self._empty(weight.experts, weight.rows) if weight.biases else None
        for number, one in enumerate(weight.each()):
            self._fill_parts(one, [name for name, _ in one.parts], stacked[number])
            if bias is not None:
                self._fill_parts(one, one.biases, bias[number])
        return Projection(stacked, bias)

    def _fill_parts(self, weight: WeightRef, names: Sequence[str], target: torch.Tensor) -> None:
        rows = [count for _, count in weight.parts]
        for name, part in zip(names, target.split(rows), strict=True):
            self._fill(name, part)

    def tied(self, weight: WeightRef) -> tuple[torch.Tensor, Projection]:
        table = self.table(weight)
        return table, Projection(table)

    def _stacked(self, weight: WeightRef) -> torch.Tensor:
        """The parts below each other."""
        stacked = self._empty(*weight.shape)
        self._fill_parts(weight, [name for name, _ in weight.parts], stacked)
        return stacked

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)
