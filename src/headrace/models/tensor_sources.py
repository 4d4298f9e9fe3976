"""Where the packed loader gets its tensors: a checkpoint's mapped files, or random numbers. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.models.families import MAX_INTERMEDIATE
from headrace.models.floats import ARRAY_TYPES, to_dtype, to_float32
from headrace.models.random_weights import POOL, RandomTensors
from headrace.models.stored import StoredWeights
from headrace.models.weight_files import TensorEntry, row_runs
from headrace.quant.coded import Coded

AHEAD_BYTES = 64 << 20
"""How far ahead of the current tensor the system is asked to read, so that the disk is busy while the CPU packs."""


class TensorSource(Protocol):
    """Yields the tensors of a model one after the other; none is needed again once it is `done`."""

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        """A norm or a bias, as a copy."""
        ...

    def table(self, name: str, rows: int, columns: int, dtype: str) -> NDArray[Any]:
        """A matrix as a copy in that type."""
        ...

    def matrices(self, names: Sequence[str], rows: Sequence[int], columns: int) -> list[NDArray[Any]]:
        """Matrices [rows, columns] in one piece or in several, each of whole rows, all of one type: float32, float16
        or the bits of bfloat16. Valid until `done`."""
        ...

    def coded(self, names: Sequence[str]) -> list[Coded]:
        """Matrices that are stored as codes, as such."""
        ...

    def blocks(self, names: Sequence[str]) -> tuple[str, list[NDArray[np.uint8]]] | None:
        """Of matrices of codes that are stored as blocks of a GGUF file, all of one type: the type, and rows as they
        lie in the file; None for others. Valid until `done`."""
        ...

    def done(self, names: Sequence[str]) -> None:
        """The tensors of these names have been used."""
        ...


class CheckpointTensors:
    """Views of a checkpoint's files. Pages are prefetched before their use and released after it, so that
    resident memory stays small for files of any size. Codes are decoded where floats are asked for."""

    def __init__(self, stored: StoredWeights, order: Sequence[str]) -> None:
        """`order`: the names in the order of their use."""
        self._checkpoint, self._coded = stored.checkpoint, stored.coded
        self._ahead: Iterator[str] = iter(order)
        self._room = AHEAD_BYTES
        self._read_ahead()

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        return np.array(to_float32(self._checkpoint.array(name)))

    def table(self, name: str, rows: int, columns: int, dtype: str) -> NDArray[Any]:
        table = np.empty((rows, columns), dtype=ARRAY_TYPES[dtype])
        for run, values in row_runs(self._checkpoint, name):
            table[run] = to_dtype(values, dtype)
        return table

    def matrices(self, names: Sequence[str], rows: Sequence[int], columns: int) -> list[NDArray[Any]]:
        arrays = [
            self._coded[name].floats() if name in self._coded else self._checkpoint.array(name)
            for name in names
        ]
        if len({array.dtype for array in arrays}) > 1 or arrays[0].dtype == np.float64:
            return [to_float32(array) for array in arrays]
        return arrays

    def coded(self, names: Sequence[str]) -> list[Coded]:
        return [self._coded[name].decode() for name in names]

    def blocks(self, names: Sequence[str]) -> tuple[str, list[NDArray[np.uint8]]] | None:
        found = [one for name in names if (one := self._coded[name].blocks()) is not None]
        return (found[0][0], [raw for _, raw in found]) if found else None

    def done(self, names: Sequence[str]) -> None:
        for name in names:
            for entry in self._entries(name):
                self._checkpoint.drop(entry.name)
                self._room += entry.end - entry.begin
        self._read_ahead()

    def _read_ahead(self) -> None:
        while self._room > 0:
            name = next(self._ahead, None)
            if name is None:
                return
            for entry in self._entries(name):
                self._checkpoint.prefetch(entry.name)
                self._room -= entry.end - entry.begin

    def _entries(self, name: str) -> tuple[TensorEntry, ...]:
        """The tensors that hold the weight of that name."""
        if name in self._coded:
            return self._coded[name].tensors
        entry = self._checkpoint.entry(name)
        assert entry is not None  # every name was looked up before the first was read
        return (entry,)


class RandomSource:
    """The numbers of RandomTensors in the type `dtype`. Matrices are views of the pool, a run of rows at a time."""

    def __init__(self, seed: int, dtype: str) -> None:
        self._tensors = RandomTensors(seed)
        self._dtype = dtype
        pool = to_dtype(self._tensors.pool, dtype)
        self._pool = np.concatenate(
            (pool, pool[:MAX_INTERMEDIATE])
        )  # so that a row that runs over the end is in one piece

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        values = np.empty(size, dtype=np.float32)
        self._tensors.fill(name, size, values.__setitem__)
        return values

    def table(self, name: str, rows: int, columns: int, dtype: str) -> NDArray[Any]:
        return np.concatenate(self.matrices([name], [rows], columns))

    def matrices(self, names: Sequence[str], rows: Sequence[int], columns: int) -> list[NDArray[Any]]:
        total, views = sum(rows), []
        start = self._tensors.take(total * columns)
        while total:
            count = min(
                total, 1 + (POOL - start - 1) // columns
            )  # the last of them may begin just before the end
            views.append(self._pool[start : start + count * columns].reshape(count, columns))
            start, total = (start + count * columns) % POOL, total - count
        return views

    def coded(self, names: Sequence[str]) -> list[Coded]:
        raise AssertionError("random weights are floats")

    def blocks(self, names: Sequence[str]) -> tuple[str, list[NDArray[np.uint8]]] | None:
        raise AssertionError("random weights are floats")

    def done(self, names: Sequence[str]) -> None:
        pass
