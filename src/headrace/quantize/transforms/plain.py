"""Tensors that change and stay floats: norms and biases that have taken up factors, and matrices that are not codes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.models.floats import to_dtype, to_float32
from headrace.models.safetensors_reader import Checkpoint, SafetensorsFile
from headrace.models.weights import Weights
from headrace.program.records import WeightRef
from headrace.quantize.formats.base import Form, Tensor

_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float32"}


class PlainTensors:
    """The tensors of some weights in the files of a model, in the types that these have.

    Names are the program's here, and those of the files outside.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def can_hold(self, weight: WeightRef, coded: bool) -> bool:
        """Whether each tensor is by itself in a file. coded: the matrix is not asked for, but its biases are."""
        if weight.in_heads is not None or weight.kind in ("table", "tied"):
            return False
        return all(
            self._checkpoint.stored_form(name, np.zeros(0, np.float32)) is not None
            for name, _, _ in _parts(weight, coded)
        )

    def names(self, weight: WeightRef, coded: bool) -> list[str]:
        """In the files."""
        return [self._checkpoint.stored_name(name) for name, _, _ in _parts(weight, coded)]

    def forms(self, weight: WeightRef, coded: bool) -> list[Form]:
        """Of what `tensors` gives."""
        found = []
        for name, _, _ in _parts(weight, coded):
            stored = self._checkpoint.stored_name(name)
            shape = self._checkpoint.file_of[stored].entries[stored].shape
            found.append(Form(stored, self._type(name)[0], tuple(shape)))
        return found

    def rounded(self, weight: WeightRef, vector: torch.Tensor) -> torch.Tensor:
        """A vector as it will be read again."""
        (name, _), *_ = weight.parts
        return torch.from_numpy(self._value(weight, self._stored(weight, name, vector.numpy())))

    def tensors(self, weights: Weights, weight: WeightRef, coded: bool) -> list[Tensor]:
        """To be written."""
        found = []
        for name, rows, kind in _parts(weight, coded):
            array = self._stored(weight, name, _array(weights, weight, kind)[rows].numpy())
            shaped = self._checkpoint.stored_form(name, array)
            assert shaped is not None
            found.append(Tensor(self._checkpoint.stored_name(name), self._type(name)[0], shaped))
        return found

    def read_back(self, file: SafetensorsFile, weights: Weights, weight: WeightRef, coded: bool) -> None:
        """Put what a file holds in the place of what was computed."""
        for name, rows, kind in _parts(weight, coded):
            array = self._checkpoint.program_form(name, file.raw(self._checkpoint.stored_name(name)))
            _array(weights, weight, kind)[rows] = torch.from_numpy(self._value(weight, array))

    def _stored(self, weight: WeightRef, name: str, values: NDArray[np.float32]) -> NDArray[np.generic]:
        exact = (values - np.float32(weight.offset)) / np.float32(weight.factor)
        return to_dtype(exact, self._type(name)[1])

    def _value(self, weight: WeightRef, stored: NDArray[np.generic]) -> NDArray[np.float32]:
        return to_float32(stored) * np.float32(weight.factor) + np.float32(weight.offset)

    def _type(self, name: str) -> tuple[str, str]:
        return stored_type(self._checkpoint, name)


def stored_type(checkpoint: Checkpoint, name: str) -> tuple[str, str]:
    """What a tensor is written in: (the name in safetensors, that of the compute type)."""
    entry = checkpoint.entry(name)
    assert entry is not None
    return ("F32" if entry.dtype == "F64" else entry.dtype), _NAMES[entry.dtype]


def _parts(weight: WeightRef, coded: bool) -> Iterator[tuple[str, tuple[int | slice, ...], str]]:
    """(tensor, where it is in the weight, "weight" or "bias") of each part."""
    for number, one in enumerate(weight.each()):
        expert = () if weight.experts is None else (number,)
        first = 0
        for place, (name, rows) in enumerate(one.parts):
            part = (*expert, slice(first, first + rows))
            if not coded:
                yield name, part, "weight"
            if one.biases:
                yield one.biases[place], part, "bias"
            first += rows


def _array(weights: Weights, weight: WeightRef, kind: str) -> torch.Tensor:
    if weight.kind == "vector":
        vector: torch.Tensor = weights.vectors[weight.name]
        return vector
    matrix = weights.matrices[weight.name]
    array = matrix.weight if kind == "weight" else matrix.bias
    assert isinstance(array, torch.Tensor)
    return array
