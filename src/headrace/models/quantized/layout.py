"""What the methods of quantising have in common: which tensors stand for a weight, and how they become codes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CheckpointError
from headrace.models.floats import to_float32
from headrace.models.weight_files import TensorEntry
from headrace.quant.code_format import CodeFormat
from headrace.quant.coded import Coded
from headrace.quant.format import Activations, Scale

FLOATS: dict[str, Scale] = {"F16": "f16", "BF16": "bf16", "F32": "f32"}
"""Types of stored scales, with their names in a `CodeFormat`."""


_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that is part of a quantised weight.

    suffix: follows the module's name, as in ".qweight". shapes: those that are legal, or None where another tensor
    decides and `Layout.decode` checks. dtypes: safetensors' names.
    """

    suffix: str
    shapes: tuple[tuple[int, ...], ...] | None
    dtypes: tuple[str, ...]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Matrix:
    """A quantised weight [rows, columns] of a checkpoint.

    module: its name without ".weight". entries: by suffix, those that exist, checked against `Layout.stored`.
    read: the array of a suffix, as `SafetensorsFile.raw` gives it.
    """

    module: str
    rows: int
    columns: int
    entries: Mapping[str, TensorEntry]
    read: Callable[[str], NDArray[Any]]

    def error(self, suffix: str, why: str) -> CheckpointError:
        """An error that names the tensor."""
        return CheckpointError(f"tensor {self.module}{suffix} {why}")

    def scales(self, suffix: str) -> tuple[NDArray[Any], Scale]:
        """Stored float scales and their type: float16 wherever that holds every one exactly, since kernels read it."""
        stored, kind = self.read(suffix), FLOATS[self.entries[suffix].dtype]
        if kind == "f16" or not _fit_float16(stored):
            return stored, kind
        return to_float32(stored).astype(np.float16), "f16"


class Layout(Protocol):
    """How one module's weight is stored. Both the format and the codes come from the tensors of a `Matrix`."""

    @property
    def codes(self) -> str:
        """The suffix of the tensor of codes. A module that lacks it has a plain weight."""
        ...

    def stored(self, rows: int, columns: int) -> Sequence[Stored]:
        """The tensors of a matrix. Raises ValueError with the reason if such a matrix cannot be stored so."""
        ...

    def format(self, matrix: Matrix) -> CodeFormat:
        """The format that `decode` gives. Reads scales and orders, whose numbers decide it, and no codes."""
        ...

    def decode(self, matrix: Matrix) -> Coded:
        """The codes, scales and zeros. Raises CheckpointError, naming the tensor, where they contradict each other."""
        ...


@dataclass(frozen=True, slots=True)
class Method:
    """A checkpoint's method of quantisation.

    layout: of a module's weight, by the module's name; None: the config says that it is not quantised.
    activations: how the method's own runs encode activations, where it says so. ignored: endings of tensors that hold
    no weight, such as scales of static activations.
    """

    name: str
    layout: Callable[[str], Layout | None]
    activations: Activations | None = None
    ignored: tuple[str, ...] = ()


def sort_by_group(
    matrix: Matrix, suffix: str, of_feature: NDArray[np.int64], group: int
) -> NDArray[np.int64] | None:
    """The input features [C] sorted by their groups, or None where they are in order already.

    Raises CheckpointError, naming the tensor, unless every group has its `group` features.
    """
    expected = np.arange(matrix.columns) // group
    if np.array_equal(of_feature, expected):
        return None
    order = np.argsort(of_feature, kind="stable")
    if not np.array_equal(of_feature[order], expected):
        raise matrix.error(suffix, f"does not put {group} input features into each group")
    return order


def order_number(order: NDArray[np.int64] | None) -> int:
    """What tells orders apart in a `CodeFormat`."""
    return 0 if order is None else zlib.crc32(order.tobytes()) | 1 << 32


def _fit_float16(scales: NDArray[Any]) -> bool:
    """Whether float16 holds them all; those of bfloat16 do unless they are below 2 ** -17 or above 65504."""
    flat = scales.reshape(-1)
    for first in range(0, flat.size, _CHUNK):
        part = to_float32(flat[first : first + _CHUNK])
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.array_equal(part.astype(np.float16).astype(np.float32), part):
                return False
    return True


def groups_of(columns: int, group: int | None) -> int:
    """Groups of a row."""
    return 1 if group is None else -(-columns // group)


def naming_modules(keys: Iterable[str]) -> Callable[[str], bool]:
    """Whether one of the names of a config's list means a module: the name itself, or a run of its dotted parts."""
    named = frozenset(key.strip(".") for key in keys)
    return lambda module: not named.isdisjoint(_runs(module))


def _runs(module: str) -> Iterator[str]:
    """All runs of a name's parts: few, where a list may have thousands of names."""
    parts = module.split(".")
    for first in range(len(parts)):
        for last in range(first + 1, len(parts) + 1):
            yield ".".join(parts[first:last])


def except_modules(layout: Layout, excluded: Iterable[str]) -> Callable[[str], Layout | None]:
    """A `Method.layout`: the same for all modules but those that these names mean."""
    means = naming_modules(excluded)
    return lambda module: None if means(module) else layout
