"""Opens safetensors checkpoints as memory maps and validates everything in them.

Every size that a file states is checked against the file before anything is allocated. Format:
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import CheckpointError
from headrace.models.source import why_incomplete
from headrace.models.weight_files import TensorEntry

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 8
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}

RAW_DTYPES = {
    **{"U8": "uint8", "I8": "int8", "F8_E4M3": "uint8", "F8_E5M2": "uint8", "F8_E8M0": "uint8"},
    **{"I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32", "I64": "int64", "U64": "uint64"},
    **{"BOOL": "uint8", "F16": "float16", "BF16": "uint16", "F32": "float32", "F64": "float64"},
}
"""Every type, and the arrays that its bits are read as."""

WEIGHT_DTYPES = {"F16": "float16", "BF16": "uint16", "F32": "float32", "F64": "float64"}
"""Types of stored dense weights, and the array types that they are read as: numpy has no bfloat16, only its bits."""


_MATRIX_DTYPES = {"F16": "float16", "BF16": "bfloat16"}


LFS_POINTER = b"version "
"""What the text begins with that Git has in place of a large file until Git LFS fetches it. No header is so long."""


class FilesMissing(CheckpointError):
    """A folder lacks files of its model, as one does whose download has not ended."""


class SafetensorsFile:
    """One file, its header checked and its data mapped."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError if the file cannot be read or its header contradicts it."""
        self.path = path
        _check_regular(path)
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                self.entries = _read_header(file, size, path.name)
                # Private copy-on-write pages: torch asks for a writable buffer, and the file must not change. After
                # a write to a view, `drop` restores the file's content.
                self._data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error

    def array(self, name: str) -> NDArray[Any]:
        """The tensor as a view of the mapped file, in its stored dtype, which must be one of WEIGHT_DTYPES."""
        entry = self.entries[name]
        if entry.dtype not in WEIGHT_DTYPES:
            raise CheckpointError(
                f"tensor {name!r} in {self.path.name} is stored as {entry.dtype}, not as a float"
            )
        return self.raw(name)

    def raw(self, name: str) -> NDArray[Any]:
        """The tensor as a view of the mapped file, of any type: see RAW_DTYPES."""
        import numpy as np  # headers are also read in the server's process, which does not need numpy

        entry = self.entries[name]
        dtype = np.dtype(RAW_DTYPES[entry.dtype])
        count = math.prod(entry.shape)
        if count == 0:
            return np.empty(entry.shape, dtype=dtype)
        if entry.begin % dtype.itemsize:
            aligned = bytearray(self._data[entry.begin : entry.end])
            return np.frombuffer(aligned, dtype=dtype).reshape(entry.shape)
        return np.frombuffer(self._data, dtype=dtype, count=count, offset=entry.begin).reshape(entry.shape)

    def excerpt(self, name: str, offset: int, size: int) -> bytes:
        """Up to `size` of the tensor's bytes, from `offset` on."""
        entry = self.entries[name]
        return self._data[entry.begin + offset : min(entry.end, entry.begin + offset + size)]

    def prefetch(self, name: str) -> None:
        """Ask the system to read the tensor in the background."""
        self._advise(name, "MADV_WILLNEED")

    def drop(self, name: str) -> None:
        """Release the tensor's pages; a view of it reads them from the file again."""
        self._advise(name, "MADV_DONTNEED")

    def _advise(self, name: str, advice: str) -> None:
        entry = self.entries[name]
        first = entry.begin // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, advice) and entry.end > first:  # a hint, which not every system knows
            self._data.madvise(getattr(mmap, advice), first, entry.end - first)


class Checkpoint:
    """All tensors of a model folder, from one file or from the shards that its index names.

    A `weight_files.WeightFiles`.
    """

    dtypes = tuple(WEIGHT_DTYPES)

    def __init__(self, folder: Path) -> None:
        """Opens every file and checks every header; raises CheckpointError in one sentence, and FilesMissing where
        one is not there."""
        self.folder = folder
        self._file_of: dict[str, SafetensorsFile] = {}
        if (folder / SINGLE_FILE).exists():
            self._add(SafetensorsFile(folder / SINGLE_FILE))
        elif (folder / INDEX_FILE).exists():
            weight_map = _read_index(folder / INDEX_FILE)
            files = {shard: _open_shard(folder, shard) for shard in dict.fromkeys(weight_map.values())}
            for file in files.values():
                self._add(file)
            for name, shard in weight_map.items():
                if name not in files[shard].entries:
                    raise CheckpointError(
                        f"{INDEX_FILE} places tensor {name!r:.200} in {shard}, which lacks it"
                    )
        else:
            raise FilesMissing(
                f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}{why_incomplete(folder)}"
            )

    @property
    def file_of(self) -> dict[str, SafetensorsFile]:
        """The file that holds each tensor, by the tensor's name."""
        return self._file_of

    @property
    def where(self) -> str:
        return str(self.folder)

    def names(self) -> Iterable[str]:
        return self._file_of.keys()

    def stored_name(self, name: str) -> str:
        return name

    def name_for_codes(self, name: str) -> str | None:
        """What a tensor is called in the files whose codes are to be read as the matrix of that name, its rows and
        columns in the program's order; None where no reader would find them so."""
        return name

    def code_entry(self, name: str) -> TensorEntry | None:
        """As `entry`, of a tensor of codes or of their scales: as it is stored, rows in the order of the file."""
        return self.entry(name)

    def codes(self, name: str) -> NDArray[Any]:
        """As `raw`, of a tensor of codes or of their scales."""
        return self.raw(name)

    def row_order(self, name: str, rows: int) -> Sequence[int] | None:
        """The stored rows of a matrix of codes in the program's order; None where they lie so."""
        return None

    def program_form(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """The file's array of a tensor in the program's order, a part of it where the file has it with others."""
        return array

    def stored_form(self, name: str, array: NDArray[Any]) -> NDArray[Any] | None:
        """What the file would have for an array in the program's order; None where it has it in one with others."""
        return array

    def paths(self) -> list[Path]:
        """The files, in order of their names."""
        return sorted({file.path for file in self._file_of.values()})

    def matrix_dtype(self, excluded: Collection[str] = ()) -> str:
        """What every matrix is stored in, or "float32" where they differ: by the names of compute types.

        `excluded`: names of tensors that are parts of quantised matrices.
        """
        stored = {
            entry.dtype
            for file in dict.fromkeys(self._file_of.values())
            for entry in file.entries.values()
            if len(entry.shape) > 1 and entry.name not in excluded
        }
        return _MATRIX_DTYPES.get(stored.pop(), "float32") if len(stored) == 1 else "float32"

    def entry(self, name: str) -> TensorEntry | None:
        file = self._file_of.get(name)
        return None if file is None else file.entries[name]

    def array(self, name: str) -> NDArray[Any]:
        """See SafetensorsFile.array; KeyError for a name that `entry` does not know."""
        return self._file_of[name].array(name)

    def raw(self, name: str) -> NDArray[Any]:
        """See SafetensorsFile.raw; KeyError for a name that `entry` does not know."""
        return self._file_of[name].raw(name)

    def rows(self, name: str, first: int, last: int) -> NDArray[Any]:
        array = self.array(name)
        return array[first:last] if array.ndim else array.reshape(1)

    def excerpt(self, name: str, offset: int, size: int) -> bytes:
        """See SafetensorsFile.excerpt."""
        return self._file_of[name].excerpt(name, offset, size)

    def prefetch(self, name: str) -> None:
        """See SafetensorsFile.prefetch."""
        self._file_of[name].prefetch(name)

    def drop(self, name: str) -> None:
        """See SafetensorsFile.drop."""
        self._file_of[name].drop(name)

    def _add(self, file: SafetensorsFile) -> None:
        for name in file.entries:
            if name in self._file_of:
                other = self._file_of[name].path.name
                raise CheckpointError(
                    f"tensor {name!r:.200} is stored twice, in {other} and {file.path.name}"
                )
            self._file_of[name] = file


def _open_shard(folder: Path, shard: str) -> SafetensorsFile:
    if not (folder / shard).exists():
        raise FilesMissing(f"shard {shard} named by {INDEX_FILE} is missing from {folder}")
    return SafetensorsFile(folder / shard)


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> shard file name. A shard is in the index's folder: a name with another folder is refused."""
    _check_regular(path)
    try:
        if path.stat().st_size > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path.name} is larger than {MAX_HEADER_BYTES} bytes")
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    content = _parse_json(text, path.name)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path.name} has no weight_map")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise CheckpointError(
                f"{path.name} places tensor {name!r:.200} in {shard!r:.200}, not a file in its folder"
            )
    return weight_map


def _check_regular(path: Path) -> None:
    """Raise CheckpointError for a folder, and for a pipe: to open one waits for who writes to it."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"cannot read {path}: it is not a regular file")


def _is_plain_name(shard: str) -> bool:
    return shard.endswith(".safetensors") and not any(bad in shard for bad in ("/", "\\", "\0", ".."))


def _read_header(file: Any, size: int, where: str) -> dict[str, TensorEntry]:
    file.seek(0)
    if size < 8:
        raise CheckpointError(f"{where} has {size} bytes, too few for a safetensors file")
    first = file.read(8)
    if first == LFS_POINTER:
        raise CheckpointError(
            f"{where} is a pointer of Git LFS, not the file itself: fetch the files with `git lfs pull`"
        )
    length = int.from_bytes(first, "little")
    if length > MAX_HEADER_BYTES or length > size - 8:
        raise CheckpointError(f"{where} states a header of {length} bytes, but the file has {size}")
    header = _parse_json(file.read(length), where)
    header.pop("__metadata__", None)
    start = 8 + length
    entries = {name: _read_entry(name, fields, start, size, where) for name, fields in header.items()}
    _check_cover(entries.values(), start, size, where)
    return entries


def _parse_json(raw: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} holds no valid JSON: {error!s:.200}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{where} must hold a JSON object, not a {type(content).__name__}")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name appears twice in one object")
    return fields


def _read_entry(name: str, fields: Any, start: int, size: int, where: str) -> TensorEntry:
    tensor = f"tensor {name!r:.200} in {where}"
    if not isinstance(fields, dict):
        raise CheckpointError(f"{tensor} is not described by an object")
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise CheckpointError(f"{tensor} has unknown dtype {dtype!r:.80}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(_is_count(n) for n in shape):
        raise CheckpointError(f"{tensor} has illegal shape {shape!r:.80}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(n) for n in offsets):
        raise CheckpointError(f"{tensor} has illegal data_offsets {offsets!r:.80}")
    begin, end = offsets
    if begin > end or end > size - start:
        raise CheckpointError(
            f"{tensor} ends at byte {end} of {size - start} bytes of data; the file is truncated"
        )
    if math.prod(shape) * ITEM_BYTES[dtype] != end - begin:
        raise CheckpointError(
            f"{tensor} of shape {shape} and dtype {dtype} does not fill its {end - begin} bytes"
        )
    return TensorEntry(name, dtype, tuple(shape), start + begin, start + end)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _check_cover(entries: Iterable[TensorEntry], start: int, size: int, where: str) -> None:
    """Tensors must tile the data without gap or overlap, as the format demands."""
    at = start
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != at:
            what = "overlaps its neighbour" if entry.begin < at else "leaves a gap before it"
            raise CheckpointError(f"tensor {entry.name!r:.200} in {where} {what}")
        at = entry.end
    if at != size:
        raise CheckpointError(f"{where} has {size - at} bytes after its last tensor")
