"""Opens one GGUF file as a memory map and checks everything in its header before anything is allocated.

Versions 2 and 3 in little-endian order, the one that all machines with kernels have.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.gguf.types import BlockType, find_type
from headrace.gguf.values import Cursor, Metadata, read_metadata

VERSIONS = (2, 3)
MAX_HEADER_BYTES = 1 << 28
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 255
DEFAULT_ALIGNMENT, MAX_ALIGNMENT = 32, 1 << 16

_MAGIC = b"GGUF"
_OLD_MAGICS = (b"lmgg", b"tjgg", b"fmgg", b"algg")  # GGML, GGJT, GGMF and GGLA as they lie in a file
_FIRST_BYTES = 24  # magic, version, number of tensors, number of keys


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's place in its file. `shape`: rows before columns, as in other checkpoints; offsets in bytes."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: of the elements along the last axis."""
        return self.type.size(self.shape[-1])


class GGUFFile:
    """One file, its header checked and its data mapped."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError if the file cannot be read or its header contradicts it, and UnsupportedModel for
        versions, byte orders and types of tensors that are not implemented."""
        self.path = path
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size < _FIRST_BYTES:
                    raise CheckpointError(f"{path.name} has {size} bytes, too few for a GGUF file")
                # Private copy-on-write pages: torch asks for a writable buffer, and the file must not change.
                self._data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
        self._read(size)

    metadata: Metadata
    tensors: Mapping[str, TensorInfo]

    def view(self, name: str) -> memoryview:
        """The bytes of a tensor, in the mapped file."""
        info = self.tensors[name]
        return memoryview(self._data)[info.begin : info.end]

    def prefetch(self, name: str, first: int = 0, last: int | None = None) -> None:
        """Ask the system to read the tensor, or its bytes `first` to `last`, in the background."""
        self._advise(name, "MADV_WILLNEED", first, last)

    def drop(self, name: str, first: int = 0, last: int | None = None) -> None:
        """Release the pages of the tensor, or of a part; a view of it reads them from the file again."""
        self._advise(name, "MADV_DONTNEED", first, last)

    def _advise(self, name: str, advice: str, first: int, last: int | None) -> None:
        info = self.tensors[name]
        begin = (info.begin + first) // mmap.PAGESIZE * mmap.PAGESIZE
        end = info.end if last is None else info.begin + last
        if hasattr(mmap, advice):  # a hint, which not every system knows
            self._data.madvise(getattr(mmap, advice), begin, end - begin)

    def _read(self, size: int) -> None:
        where = self.path.name
        _check_magic(self._data[:8], where)
        cursor = Cursor(self._data, 8, min(size, MAX_HEADER_BYTES), where)
        tensors, keys = cursor.u64(), cursor.u64()
        for count, limit, what in ((tensors, MAX_TENSORS, "tensors"), (keys, MAX_KEYS, "keys of metadata")):
            if count > limit:
                raise CheckpointError(f"{where} states {count} {what}; at most {limit} are allowed")
        self.metadata = read_metadata(cursor, keys, self._data, where)
        self.tensors = _read_tensors(cursor, tensors, _alignment(self.metadata, where), size, where)


def begins_as_gguf(path: Path) -> bool:
    """Whether a file's first bytes are those of GGUF; False for one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _check_magic(first: bytes, where: str) -> None:
    """The first eight bytes: magic and version."""
    if first[:4] in _OLD_MAGICS:
        raise UnsupportedModel(f"{where} is in a format older than GGUF: convert it with llama.cpp's scripts")
    if first == b"version ":
        raise CheckpointError(
            f"{where} is a pointer of Git LFS, not the file itself: fetch it with `git lfs pull`"
        )
    if first[:4] != _MAGIC:
        raise CheckpointError(f"{where} is not a GGUF file: it begins with {first[:4]!r}")
    version = int.from_bytes(first[4:], "little")
    if version in VERSIONS:
        return
    if int.from_bytes(first[4:], "big") in VERSIONS:
        raise UnsupportedModel(
            f"{where} is a big-endian GGUF file; only little-endian ones can be read: "
            "convert it with gguf-convert-endian"
        )
    raise UnsupportedModel(f"{where} has GGUF version {version}; only 2 and 3 can be read")


def _alignment(metadata: Metadata, where: str) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    good = isinstance(value, int) and not isinstance(value, bool) and 8 <= value <= MAX_ALIGNMENT
    if not good or value & (value - 1):
        raise CheckpointError(
            f"general.alignment in {where} must be a power of two between 8 and {MAX_ALIGNMENT}, got {value!r:.80}"
        )
    return int(value)


def _read_tensors(cursor: Cursor, count: int, alignment: int, size: int, where: str) -> dict[str, TensorInfo]:
    cursor.room_for(count, 33, "tensors")  # a name of one byte, one dimension, type, offset
    stated: dict[str, tuple[BlockType, tuple[int, ...], int]] = {}
    for _ in range(count):
        name = cursor.text(MAX_NAME_BYTES, "a tensor's name")
        if name in stated:
            raise CheckpointError(f"{where} has the tensor {name!r:.200} twice")
        stated[name] = _read_stated(cursor, f"tensor {name!r:.200} in {where}")
    start = -(-cursor.at // alignment) * alignment
    infos = {
        name: _place(name, *fields, start=start, alignment=alignment, size=size, where=where)
        for name, fields in stated.items()
    }
    for before, after in pairwise(sorted(infos.values(), key=lambda info: info.begin)):
        if after.begin < before.end:
            raise CheckpointError(
                f"tensors {before.name!r:.200} and {after.name!r:.200} in {where} overlap, at byte {after.begin}"
            )
    return infos


def _read_stated(cursor: Cursor, tensor: str) -> tuple[BlockType, tuple[int, ...], int]:
    """(type, shape, offset) as the header states them."""
    dimensions = cursor.u32()
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise CheckpointError(f"{tensor} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed")
    shape = tuple(reversed([cursor.u64() for _ in range(dimensions)]))
    return find_type(cursor.u32(), tensor), shape, cursor.u64()


def _place(
    name: str, type: BlockType, shape: tuple[int, ...], offset: int, *, start: int, alignment: int, size: int,
    where: str,
) -> TensorInfo:  # fmt: skip
    tensor = f"tensor {name!r:.200} in {where}"
    if 0 in shape:
        raise CheckpointError(f"{tensor} has no elements: its shape is {list(shape)}")
    if shape[-1] % type.weights:
        raise CheckpointError(
            f"{tensor} has rows of {shape[-1]} elements, which are not whole blocks of {type.weights} ({type.name})"
        )
    if offset % alignment:
        raise CheckpointError(f"{tensor} begins at {offset}, which is not a multiple of {alignment}")
    begin = start + offset
    end = begin + type.size(prod(shape))
    if end > size:
        raise CheckpointError(
            f"{tensor} ends at byte {end}, but the file has {size}: it is truncated, or its header is wrong"
        )
    return TensorInfo(name, type, shape, begin, end)
