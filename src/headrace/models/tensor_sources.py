"""Where the packed loader gets its tensors: a checkpoint's mapped files, or random numbers. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.models.floats import to_dtype, to_float32
from headrace.models.random_weights import POOL, RandomTensors
from headrace.models.safetensors_reader import Checkpoint

AHEAD_BYTES = 64 << 20
"""How far behind the tensor in work the system is asked to read: the disk is busy while the CPU packs."""

CHUNK = 1 << 22
"""Elements converted at once."""


class TensorSource(Protocol):
    """Gives out the tensors of a model one after the other; none is needed again once it is `done`."""

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        """A norm or a bias, as a copy."""
        ...

    def table(self, name: str, rows: int, columns: int, dtype: str) -> NDArray[Any]:
        """A matrix as a copy in the compute type."""
        ...

    def matrices(self, names: Sequence[str], rows: Sequence[int], columns: int) -> list[NDArray[Any]]:
        """Matrices [rows, columns] of one type, float32, float16 or the bits of bfloat16; valid until `done`."""
        ...

    def done(self, names: Sequence[str]) -> None:
        """The tensors of these names have been used."""
        ...


class CheckpointTensors:
    """Views of a checkpoint's files. Pages are asked for ahead of their use and given back behind it, so that
    what is resident stays small whatever the size of the files."""

    def __init__(self, checkpoint: Checkpoint, order: Sequence[str]) -> None:
        """`order`: the names in the order of their use."""
        self._checkpoint = checkpoint
        self._ahead: Iterator[str] = iter(order)
        self._room = AHEAD_BYTES
        self._read_ahead()

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        return np.array(to_float32(self._checkpoint.array(name)))

    def table(self, name: str, rows: int, columns: int, dtype: str) -> NDArray[Any]:
        stored = self._checkpoint.array(name)
        table = np.empty((rows, columns), dtype=np.uint16 if dtype == "bfloat16" else np.float32)
        step = max(1, CHUNK // columns)
        for row in range(0, rows, step):
            table[row : row + step] = to_dtype(stored[row : row + step], dtype)
        return table

    def matrices(self, names: Sequence[str], rows: Sequence[int], columns: int) -> list[NDArray[Any]]:
        arrays = [self._checkpoint.array(name) for name in names]
        if len({array.dtype for array in arrays}) > 1 or arrays[0].dtype == np.float64:
            return [to_float32(array) for array in arrays]
        return arrays

    def done(self, names: Sequence[str]) -> None:
        for name in names:
            self._checkpoint.drop(name)
            self._room += self._bytes(name)
        self._read_ahead()

    def _read_ahead(self) -> None:
        while self._room > 0:
            name = next(self._ahead, None)
            if name is None:
                return
            self._checkpoint.prefetch(name)
            self._room -= self._bytes(name)

    def _bytes(self, name: str) -> int:
        entry = self._checkpoint.entry(name)
        assert entry is not None  # every name was looked up before the first was read
        return entry.end - entry.begin


class RandomSource:
    """The numbers of RandomTensors, in the compute type. Matrices share one buffer, filled anew for each stack."""

    def __init__(self, seed: int, dtype: str) -> None:
        self._tensors = RandomTensors(seed)
        self._dtype = dtype
        self._pool = to_dtype(self._tensors.pool, dtype)
        self._buffer = self._pool[:0]

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        values = np.empty(size, dtype=np.float32)
        self._tensors.fill(name, size, values.__setitem__)
        return values

    def table(self, name: str, rows: int, columns: int, dtype: str) -> NDArray[Any]:
        table = np.empty(rows * columns, dtype=self._pool.dtype)
        self._fill(table)
        return table.reshape(rows, columns)

    def matrices(self, names: Sequence[str], rows: Sequence[int], columns: int) -> list[NDArray[Any]]:
        if self._buffer.size < sum(rows) * columns:
            self._buffer = np.empty(sum(rows) * columns, dtype=self._pool.dtype)
        self._fill(self._buffer[: sum(rows) * columns])
        ends = np.cumsum(rows) * columns
        return [
            self._buffer[end - count * columns : end].reshape(count, columns)
            for end, count in zip(ends.tolist(), rows, strict=True)
        ]

    def done(self, names: Sequence[str]) -> None:
        pass

    def _fill(self, values: NDArray[Any]) -> None:
        start, at = self._tensors.take(values.size), 0
        while at < values.size:
            count = min(values.size - at, POOL - start)
            values[at : at + count] = self._pool[start : start + count]
            at, start = at + count, (start + count) % POOL
