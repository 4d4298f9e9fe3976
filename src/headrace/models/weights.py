"""The weights of a model in memory: what one backend made of a program's `WeightRef`s. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.errors import CheckpointError
from headrace.models.names import WeightNames
from headrace.models.weight_files import WeightFiles
from headrace.ops.signatures import Weight
from headrace.ops.table import DENSE
from headrace.program.records import Program, WeightRef

Array = Any
"""A tensor on the torch path. On the native path an array: float32, float16, or uint16 with the bits of bfloat16."""

Progress = Callable[[int, int], None]
"""Called after every tensor with the number done and the number in all."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear map. `format` names the ops that can read `weight`.

    A dense weight is a tensor [O, I], of experts [E, O, I]; other formats are a headrace._native.PackedMatrix, which
    holds the bias too.
    Rows of a gate lie above those of what it multiplies; packed: 16 of each in turn.
    """

    weight: Weight
    bias: Array | None = None  # [O], of experts [E, O]
    format: str = DENSE


@dataclass(frozen=True, slots=True)
class Weights:
    """By `WeightRef.name`. A tied weight is both in `tables` and in `matrices`, one thing in memory where that can be.

    tables: [rows, columns], the head's PackedMatrix where one matrix is both. vectors: [size].
    """

    tables: Mapping[str, Array]
    vectors: Mapping[str, Array]
    matrices: Mapping[str, Projection]

    @property
    def dtype(self) -> Any:
        """Of the embeddings, on the torch path: the compute type."""
        return next(iter(self.tables.values())).dtype

    @property
    def formats(self) -> tuple[str, ...]:
        """Weight formats in use, for binding the ops."""
        return tuple(dict.fromkeys(matrix.format for matrix in self.matrices.values()))


class Maker(Protocol):
    """Turns checkpoint tensors into the arrays of one backend."""

    def table(self, weight: WeightRef) -> Array: ...

    def vector(self, weight: WeightRef) -> Array: ...

    def matrix(self, weight: WeightRef) -> Projection: ...

    def tied(self, weight: WeightRef) -> tuple[Array, Projection]:
        """The table, and the matrix that it is too."""
        ...


def make_weights(weights: Iterable[WeightRef], make: Maker) -> Weights:
    """Make weights, one after the other."""
    tables: dict[str, Array] = {}
    vectors: dict[str, Array] = {}
    matrices: dict[str, Projection] = {}
    for weight in weights:
        name = weight.name
        if weight.kind == "tied":
            tables[name], matrices[name] = make.tied(weight)
        elif weight.kind == "table":
            tables[name] = make.table(weight)
        elif weight.kind == "vector":
            vectors[name] = make.vector(weight)
        else:
            matrices[name] = make.matrix(weight)
    return Weights(tables, vectors, matrices)


def check_tensors(
    checkpoint: WeightFiles,
    program: Program,
    names: WeightNames,
    coded: Collection[str] = (),
    others: Collection[str] = (),
) -> None:
    """Raise CheckpointError for the first tensor that is missing, unexpected, misshapen or of another type.

    coded: tensors of the program that are stored as codes, which are checked already. others: tensors that are
    expected too.
    """
    check_present(checkpoint, program, coded)
    expected = program.tensors()
    # A tied model's head is the embedding; checkpoints that store it once more are common, and HF ignores it too.
    known = {*expected, f"{names.head}.weight", *others}.difference(coded) | {*others}
    for name in checkpoint.names():
        if names.ignores(name, program.num_layers):
            continue
        if name not in known:
            raise CheckpointError(
                f"the checkpoint holds tensor {name!r:.200}, which the config does not account for"
            )


def check_present(checkpoint: WeightFiles, program: Program, coded: Collection[str] = ()) -> None:
    """As `check_tensors`, for files that may hold any other tensors besides."""
    for name, shape in program.tensors().items():
        if name in coded:
            continue
        entry = checkpoint.entry(name)
        if entry is None:
            raise CheckpointError(f"the checkpoint in {checkpoint.where} lacks tensor {name}")
        stored = checkpoint.stored_name(name)
        if entry.shape != shape:
            raise CheckpointError(
                f"tensor {stored} has shape {list(entry.shape)}, but the config asks for {list(shape)}"
            )
        if entry.dtype not in checkpoint.dtypes:
            raise CheckpointError(
                f"tensor {stored} is stored as {entry.dtype}, not as one of {', '.join(checkpoint.dtypes)}"
            )
