"""Fills the torch decoder's weights, from a checkpoint or at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.models.families import weight_names
from headrace.models.floats import to_dtype, to_float32
from headrace.models.random_weights import RandomTensors
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stacks import Progress, Stack, build, check_tensors, expected_tensors
from headrace.models.weights import DecoderWeights, Projection

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
) -> DecoderWeights:
    """The weights of a resolved model: read from its folder, or random with `seed` for a shape.

    Raises CheckpointError, naming the tensor, where the checkpoint does not hold what `spec` needs.
    """
    if source.path is None:
        return random_weights(spec, dtype=dtype, device=device, seed=seed)
    return read_weights(Checkpoint(source.path), spec, dtype=dtype, device=device, progress=progress)


def read_weights(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> DecoderWeights:
    """Copy every tensor into the decoder's layout, converting to `dtype` on the way, one tensor at a time.

    Names, shapes and dtypes of all tensors are checked before the first is allocated.
    """
    names = weight_names(spec)
    expected = expected_tensors(spec, names)
    check_tensors(checkpoint, expected, spec, names)
    done = 0

    def fill(name: str, target: torch.Tensor) -> None:
        nonlocal done
        target.copy_(as_tensor(checkpoint.array(name)))
        done += 1
        if progress is not None:
            progress(done, len(expected))

    return build(spec, names, _TorchMaker(fill, dtype, torch.device(device)))


def random_weights(
    spec: ModelSpec, *, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0
) -> DecoderWeights:
    """Weights for measuring speed and for tests, see RandomTensors, as a checkpoint of `spec` could hold them."""
    tensors = RandomTensors(seed)
    stored = spec.stored_dtype if dtype == torch.float32 else "float32"

    def fill(name: str, target: torch.Tensor) -> None:
        kind = stored if target.dim() > 1 else "float32"
        tensors.fill(
            name, target.numel(), lambda part, values: _put(target, part, to_float32(to_dtype(values, kind)))
        )

    return build(spec, weight_names(spec), _TorchMaker(fill, dtype, torch.device(device)))


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """A view of a checkpoint array as a tensor; uint16 holds the bits of bfloat16."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _put(target: torch.Tensor, part: slice, values: NDArray[np.float32]) -> None:
    target.view(-1)[part] = torch.from_numpy(values).to(target.device)  # each target is whole rows


class _TorchMaker:
    """Plain tensors [O, I]; a `stacks.Maker`. `fill` puts the tensor of that name into a part of a weight."""

    def __init__(
        self, fill: Callable[[str, torch.Tensor], None], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._fill = fill
        self._dtype, self._device = dtype, device

    def table(self, name: str, rows: int, columns: int) -> torch.Tensor:
        return self._filled(name, rows, columns)

    def norm(self, name: str, size: int) -> torch.Tensor:
        return self._filled(name, size)

    def projection(self, stack: Stack) -> Projection:
        weight = self._empty(stack.rows, stack.columns)
        bias = self._empty(stack.rows) if stack.biases else None
        rows = [count for _, count in stack.parts]
        if bias is not None:
            for name, part in zip(stack.biases, bias.split(rows), strict=True):
                self._fill(name, part)
        for (name, _), part in zip(stack.parts, weight.split(rows), strict=True):
            self._fill(name, part)
        return Projection(weight, bias)

    def tied(self, name: str, rows: int, columns: int) -> tuple[torch.Tensor, Projection]:
        table = self.table(name, rows, columns)
        return table, Projection(table)

    def _filled(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self._empty(*shape)
        self._fill(name, tensor)
        return tensor

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)
