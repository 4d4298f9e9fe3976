"""packed.json: what it says of each weight, read and checked by itself."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from headrace.errors import CheckpointError, ConfigError
from headrace.quant.block_formats import BLOCK_FORMATS, named_format
from headrace.quant.format import (
    ACTIVATION_NAMES,
    BF16,
    PAGE,
    WeightFormat,
    WeightFormats,
)

HEADER_FILE, DATA_FILE = "packed.json", "packed.weights"
VERSION = 1
MAX_HEADER_BYTES = 100_000_000
MAX_TEXT_CHARS = 4096
MAX_SIZE = 2**62

ARRAY_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Types of tables and vectors."""

Facts = TypeVar("Facts", "PackedFacts", "ArrayForm", "MatrixForm", "Entry", WeightFormat)


@dataclass(frozen=True, slots=True)
class PackedFacts:
    """What holds for all weights of a folder.

    layout: `headrace._native.Kernels.layout`. kernels: the instruction set that packed them, which matters for
    nothing. dtype: the compute type that they were packed for; stored_dtype: of the checkpoint's matrices;
    quantization: the option's value. kv_dtype: of keys and values where no option asks for one; None is the compute
    type.
    """

    version: int
    headrace: str
    model: str
    layout: str
    kernels: str
    dtype: str
    stored_dtype: str
    quantization: str | None
    kv_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """A table [rows, columns] or a vector [rows]: its type, as in ARRAY_BYTES."""

    dtype: str
    rows: int
    columns: int | None


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """A packed matrix: its format and shape, and whether it has a gate and a bias. experts: so many of them."""

    format: WeightFormat
    rows: int
    columns: int
    gate: bool
    bias: bool
    experts: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A piece of the data: of the weight `name`, as an array or as a matrix; the other form is None."""

    name: str
    offset: int
    bytes: int
    sha256: str
    array: ArrayForm | None
    matrix: MatrixForm | None


@dataclass(frozen=True, slots=True)
class PackedHeader:
    """A folder's packed.json, checked. `arrays` and `matrices` by the weight's name; a tied weight may be in both.

    formats: of the matrices, by the names that they are packed under.
    """

    folder: Path
    facts: PackedFacts
    entries: tuple[Entry, ...]
    arrays: Mapping[str, Entry]
    matrices: Mapping[str, Entry]
    formats: WeightFormats
    digest: bytes

    @property
    def data(self) -> Path:
        return self.folder / DATA_FILE

    @property
    def bytes(self) -> int:
        """Of the data."""
        last = self.entries[-1]
        return whole_pages(last.offset + last.bytes)


def is_packed(folder: Path | None) -> bool:
    """Whether a model's folder holds packed weights."""
    return folder is not None and (folder / HEADER_FILE).is_file()


def read_header(folder: Path) -> PackedHeader:
    """Read and check packed.json. Raises CheckpointError in one sentence, which names the wrong weight."""
    path = folder / HEADER_FILE
    try:
        if path.stat().st_size > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path} is larger than {MAX_HEADER_BYTES} bytes")
        raw = path.read_bytes()
        content = json.loads(raw)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} holds no valid JSON: {error!s:.200}") from error
    if not isinstance(content, dict) or not isinstance(content.get("facts"), dict):
        raise CheckpointError(f"{path} describes no packed weights")
    if content["facts"].get("version") != VERSION:
        raise CheckpointError(
            f"{folder} was packed in version {content['facts'].get('version')!r:.40} of the format, and this is "
            f"version {VERSION}: pack the model again with `headrace pack`"
        )
    where = f"{HEADER_FILE} of {folder}"
    facts = _record(PackedFacts, content["facts"], where, ("kv_dtype",))
    for dtype in (facts.dtype, facts.stored_dtype):
        if dtype not in ARRAY_BYTES:
            raise CheckpointError(
                f"{where} names the type {dtype!r:.80}, not one of {', '.join(ARRAY_BYTES)}"
            )
    if facts.kv_dtype not in (None, "float32", "bfloat16"):
        raise CheckpointError(f"{where} names keys and values in {facts.kv_dtype!r:.80}")
    listed = content.get("weights")
    if not isinstance(listed, list) or not listed:
        raise CheckpointError(f"{where} lists no weights")
    entries = tuple(_entry(one, where) for one in listed)
    _check_cover(entries, folder)
    arrays = _by_name((entry for entry in entries if entry.array is not None), where)
    matrices = _by_name((entry for entry in entries if entry.matrix is not None), where)
    formats = _formats(facts, arrays, matrices, where)
    return PackedHeader(folder, facts, entries, arrays, matrices, formats, hashlib.sha256(raw).digest())


# ---- Checks ----


def _record(kind: type[Facts], content: Any, where: str, optional: Sequence[str] = ()) -> Facts:
    """A record from JSON with its fields and no others, each of the type that it declares; records inside of it are
    made already. `optional` fields may be missing."""
    record: Any = kind
    names = [field.name for field in fields(kind)]
    if not isinstance(content, dict) or set(content) | set(optional) != set(names):
        raise CheckpointError(f"{where} has a {kind.__name__} without exactly the fields {', '.join(names)}")
    for name, declared in _declared(record).items():
        if name in content and not _fits(content[name], declared):
            raise CheckpointError(f"{where} has {name} {content[name]!r:.80}")
    return kind(**content)


@cache
def _declared(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, declared: Any) -> bool:
    choices = get_args(declared)
    if get_origin(declared) is Literal:
        return isinstance(value, str) and value in choices
    if choices:
        return any(_fits(value, choice) for choice in choices)
    return _TYPES[declared](value) if declared in _TYPES else isinstance(value, declared)


_TYPES: Mapping[type, Callable[[Any], bool]] = {
    int: lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SIZE,
    str: lambda value: isinstance(value, str) and len(value) <= MAX_TEXT_CHARS,
}


def _entry(content: Any, where: str) -> Entry:
    if not isinstance(content, dict):
        raise CheckpointError(f"{where} lists something that is not a weight: {content!r:.80}")
    where = f"weight {content.get('name')!r:.200} in {where}"
    array, matrix = content.get("array"), content.get("matrix")
    if (array is None) == (matrix is None):
        raise CheckpointError(f"{where} is not described either as an array or as a matrix")
    flat = _record(Entry, {**content, "array": None, "matrix": None}, where)
    form = None if array is None else _record(ArrayForm, array, where)
    packed = None if matrix is None else _matrix_form(matrix, where)
    if form is not None:
        if form.dtype not in ARRAY_BYTES:
            raise CheckpointError(
                f"{where} has the type {form.dtype!r:.80}, not one of {', '.join(ARRAY_BYTES)}"
            )
        shape = (form.rows,) if form.columns is None else (form.rows, form.columns)
        if math.prod(shape) * ARRAY_BYTES[form.dtype] != flat.bytes:
            raise CheckpointError(f"{where} of shape {list(shape)} does not fill its {flat.bytes} bytes")
    elif flat.bytes % PAGE:
        raise CheckpointError(f"{where} is a matrix of {flat.bytes} bytes, which are not whole pages")
    return Entry(flat.name, flat.offset, flat.bytes, flat.sha256, form, packed)


def _matrix_form(content: Any, where: str) -> MatrixForm:
    stated = content.get("format") if isinstance(content, dict) else None
    try:
        format = _record(WeightFormat, stated, where)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error!s:.200}") from error
    of_blocks = format.blocks or format.minima or format.scale == "super"
    if of_blocks and BLOCK_FORMATS.get(format.blocks) != format:
        raise CheckpointError(f"{where}: {format.blocks!r:.80} is not a type of blocks that are stored so")
    return _record(MatrixForm, {"experts": None, **content, "format": format}, where)


def _formats(
    facts: PackedFacts, arrays: Mapping[str, Entry], matrices: Mapping[str, Entry], where: str
) -> WeightFormats:
    asked = None
    if facts.quantization not in (None, *ACTIVATION_NAMES):
        try:
            asked = named_format(str(facts.quantization))
        except ConfigError as error:
            raise CheckpointError(f"{where}: {error}") from error
    formats: dict[str, WeightFormat] = {}
    for name, entry in matrices.items():
        assert entry.matrix is not None
        formats[name] = entry.matrix.format
        if asked not in (None, formats[name]) and formats[name].activations != "f32":
            raise CheckpointError(
                f"weight {name!r:.200} in {where} is packed as {formats[name].name}, not as {facts.quantization}"
            )
    found = list(dict.fromkeys(formats.values()))
    floats = [one for one in found if not one.quantized]
    usual = (floats or found)[0] if floats or len(found) == 1 else BF16
    kept = formats.keys() - arrays.keys()  # those that are looked up have no array beside them
    others = [(name, one) for name, one in formats.items() if one != usual]
    exact = tuple((name, one) for name, one in others if one.activations == "f32")
    return WeightFormats(
        usual, tuple(one for one in others if one not in exact), frozenset(kept), exact=exact
    )


def _check_cover(entries: Sequence[Entry], folder: Path) -> None:
    """Entries follow each other from the start of the data, each from a page on, and none is empty."""
    at = 0
    for entry in entries:
        if entry.offset != at or entry.bytes == 0:
            raise CheckpointError(
                f"weight {entry.name!r:.200} in {HEADER_FILE} of {folder} has {entry.bytes} bytes at {entry.offset}, "
                f"where {at} is the next page"
            )
        at = whole_pages(at + entry.bytes)


def _by_name(entries: Any, where: str) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in found:
            raise CheckpointError(f"{where} lists weight {entry.name!r:.200} twice")
        found[entry.name] = entry
    return found


def whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
