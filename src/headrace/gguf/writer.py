"""Writes a GGUF file, version 3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headrace.gguf.types import BlockType

ALIGNMENT = 32

Value = bool | int | float | str | Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str]
"""Whole numbers are written as uint32, in arrays as int32; floats as float32."""

_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor that will be written. shape: as arrays have it, the rows' length last."""

    name: str
    type: BlockType
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        elements = 1
        for one in self.shape:
            elements *= one
        return self.type.size(elements)


def total_size(metadata: Mapping[str, Value], tensors: Sequence[Planned]) -> int:
    """Bytes of the file."""
    return len(_header(metadata, tensors)) + sum(_padded(one.size) for one in tensors)


def write_header(file: BinaryIO, metadata: Mapping[str, Value], tensors: Sequence[Planned]) -> None:
    file.write(_header(metadata, tensors))


def write_without_weights(
    path: Path, metadata: Mapping[str, Value], tensors: Sequence[Planned], first: bytes = b""
) -> None:
    """A sparse file whose tensors are zero, except the bytes of the first one: what readers say of the header can be
    known before there is any weight."""
    with path.open("wb") as file:
        write_header(file, metadata, tensors)
        file.write(first)
        file.truncate(total_size(metadata, tensors))


def write_data(file: BinaryIO, tensor: Planned, parts: Iterable[bytes | memoryview]) -> None:
    """The next tensor's bytes, which are of its size in all."""
    written = sum(file.write(part) for part in parts)
    assert written == tensor.size, (tensor, written)
    file.write(b"\0" * (_padded(written) - written))


def finish(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _header(metadata: Mapping[str, Value], tensors: Sequence[Planned]) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(value)]
    offset = 0
    for one in tensors:
        sizes = struct.pack(f"<{len(one.shape)}Q", *reversed(one.shape))
        parts += [_text(one.name), struct.pack("<I", len(one.shape)), sizes]
        parts.append(struct.pack("<IQ", one.type.number, offset))
        offset += _padded(one.size)
    whole = b"".join(parts)
    return whole + b"\0" * (_padded(len(whole)) - len(whole))


def _text(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    kind, items = _items(value)
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + items


def _items(values: Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str]) -> tuple[int, bytes]:
    """(their type, their bytes); all have that of the first one."""
    first = values[0] if values else 0
    if isinstance(first, str):
        return _STRING, b"".join(_text(str(one)) for one in values)
    if isinstance(first, bool):
        return _BOOL, struct.pack(f"<{len(values)}B", *values)
    if isinstance(first, int):
        return _INT32, struct.pack(f"<{len(values)}i", *values)
    return _FLOAT32, struct.pack(f"<{len(values)}f", *values)
