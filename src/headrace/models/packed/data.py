"""packed.weights: mapped, written, and compared with its checksums."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import CheckpointError
from headrace.models.packed.header import (
    DATA_FILE,
    HEADER_FILE,
    ArrayForm,
    Entry,
    MatrixForm,
    PackedFacts,
    PackedHeader,
)
from headrace.quant.format import PAGE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK_BYTES = 1 << 24


class PackedData:
    """The data of a folder as one shared mapping, which processes have in common. Views keep it alive."""

    def __init__(self, header: PackedHeader) -> None:
        """Raises CheckpointError where the file is not as the header says."""
        import numpy as np

        check_data(header)
        try:
            with header.data.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), header.bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: the file has become shorter
            raise CheckpointError(
                f"cannot read {header.data}: {getattr(error, 'strerror', None) or error}"
            ) from error
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        self._advise("MADV_HUGEPAGE")  # where the file system has them: a sixth faster for one row

    def prefetch(self) -> None:
        """Ask the system to read all of it in the background."""
        self._advise("MADV_WILLNEED")

    def piece(self, entry: Entry) -> NDArray[np.uint8]:
        """Its bytes; those of a matrix in whole pages."""
        return self._bytes[entry.offset : entry.offset + entry.bytes]

    def array(self, entry: Entry) -> NDArray[Any]:
        """A table or a vector, read-only; uint16 holds the bits of bfloat16."""
        form = entry.array
        assert form is not None
        dtype = "uint16" if form.dtype == "bfloat16" else form.dtype
        shape = (form.rows,) if form.columns is None else (form.rows, form.columns)
        return self.piece(entry).view(dtype).reshape(shape)

    def _advise(self, advice: str) -> None:
        if hasattr(mmap, advice):
            try:
                self._map.madvise(getattr(mmap, advice))
            except OSError:  # a hint, which not every system takes
                return


def check_data(header: PackedHeader) -> None:
    """Raise CheckpointError where the data is absent, no file, or of another size than the header says."""
    try:
        found = header.data.stat()
    except OSError as error:
        raise CheckpointError(f"cannot read {header.data}: {error.strerror or error}") from error
    if not stat.S_ISREG(found.st_mode):  # opening a pipe blocks until something writes to it
        raise CheckpointError(f"cannot read {header.data}: it is not a regular file")
    if found.st_size != header.bytes:
        raise CheckpointError(
            f"{header.data} has {found.st_size} bytes, but its header states {header.bytes}: it is not complete"
        )


class PackedWriter:
    """Writes a folder's two files, the header last. Any order of weights; each is written as it comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / DATA_FILE).open("xb")
        self._entries: list[Entry] = []

    def array(self, name: str, dtype: str, values: NDArray[Any]) -> None:
        """A table or a vector, of the type `dtype`, as in ARRAY_BYTES."""
        columns = values.shape[1] if values.ndim == 2 else None
        self._add(name, [values.reshape(-1).view("uint8")], ArrayForm(dtype, values.shape[0], columns), None)

    def matrix(self, name: str, form: MatrixForm, pieces: Sequence[NDArray[np.uint8]]) -> None:
        """The pieces of a packed matrix."""
        self._add(name, pieces, None, form)

    def finish(self, facts: PackedFacts) -> None:
        """Write the header, and both files to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        content = {"facts": asdict(facts), "weights": [asdict(entry) for entry in self._entries]}
        with (self._folder / HEADER_FILE).open("x", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Give up: what was written is of no use."""
        self._file.close()

    def _add(
        self, name: str, pieces: Sequence[NDArray[Any]], array: ArrayForm | None, matrix: MatrixForm | None
    ) -> None:
        offset, digest, size = self._file.tell(), hashlib.sha256(), 0
        for piece in pieces:
            for begin in range(0, len(piece), CHUNK_BYTES):
                part = piece[begin : begin + CHUNK_BYTES]
                digest.update(part.data)
                self._file.write(part.data)
            size += len(piece)
        self._file.write(bytes(-size % PAGE))
        self._entries.append(Entry(name, offset, size, digest.hexdigest(), array, matrix))


def verify(header: PackedHeader, progress: Callable[[int, int], None] | None = None) -> None:
    """Read all data and compare it with the checksums; raises CheckpointError for the first weight that differs.

    `progress` is called with (bytes read, total).
    """
    data, done = PackedData(header), 0
    for entry in header.entries:
        found, piece = hashlib.sha256(), data.piece(entry)
        for begin in range(0, len(piece), CHUNK_BYTES):
            part = piece[begin : begin + CHUNK_BYTES]
            found.update(part.data)
            done += len(part)
            if progress is not None:
                progress(done, header.bytes)
        if found.hexdigest() != entry.sha256:
            raise CheckpointError(f"weight {entry.name} in {header.folder} is damaged: its SHA-256 differs")
