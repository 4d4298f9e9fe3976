"""Metadata of a GGUF file: keys with typed values, checked when the file is opened and decoded when they are read.

Opening walks over the values once and keeps only their places, so that a vocabulary of half a million strings costs
nothing until the tokenizer asks for it, and absurd counts fail before anything is allocated.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace.errors import CheckpointError

MAX_KEY_BYTES = 65_535
MAX_STRING_BYTES = 1 << 26
MAX_ITEMS = 1 << 23
"""Strings, and arrays inside of arrays, in all arrays of one file."""
MAX_DEPTH = 4
"""Arrays inside of each other."""

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, tuple[str, str]] = {
    0: ("<B", "B"),
    1: ("<b", "b"),
    2: ("<H", "H"),
    3: ("<h", "h"),
    4: ("<I", "I"),
    5: ("<i", "i"),
    6: ("<f", "f"),
    7: ("<B", "B"),
    10: ("<Q", "Q"),
    11: ("<q", "q"),
    12: ("<d", "d"),
}
"""By number of the type: the format of one, and the code of an `array.array`."""
_SMALLEST = {_STRING: 8, _ARRAY: 12} | {kind: struct.calcsize(form) for kind, (form, _) in _SCALARS.items()}
"""Bytes that a value of a type takes at least."""

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class _Place:
    """A value that has been checked: its type, and its bytes in the file."""

    kind: int
    begin: int
    end: int


class Cursor:
    """Reads the header of a mapped file from front to back; every read is checked against `end`."""

    def __init__(self, data: Any, begin: int, end: int, where: str) -> None:
        """`data`: bytes or a map of them. `end`: the header reaches no further. `where`: the file, for errors."""
        self.at = begin
        self._data, self._end, self._where = data, end, where
        self._items = 0

    def u32(self) -> int:
        return int(_U32.unpack_from(self._data, self._take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self._data, self._take(8))[0])

    def text(self, limit: int, what: str) -> str:
        """A string of 1 to `limit` bytes of UTF-8; `what` names it in errors."""
        length = self.u64()
        if not 1 <= length <= limit:
            self._fail(f"has {what} of {length} bytes; 1 to {limit} are allowed")
        begin = self._take(length)
        try:
            return bytes(self._data[begin : begin + length]).decode()
        except UnicodeDecodeError:
            self._fail(f"has {what} that is not UTF-8, at byte {begin}")

    def room_for(self, count: int, size: int, what: str) -> None:
        """Check that `count` things of at least `size` bytes can follow."""
        if count > (self._end - self.at) // size:
            self._fail(f"states {count} {what}, but is too short for them")

    def skip(self, key: str) -> _Place:
        """Check the value that follows, and move past it."""
        kind, begin = self.u32(), self.at
        self._skip_value(kind, key, 0)
        return _Place(kind, begin, self.at)

    def _skip_value(self, kind: int, key: str, depth: int) -> None:
        if kind == _ARRAY:
            self._skip_array(key, depth + 1)
        elif kind == _STRING:
            self._skip_string(key)
        elif kind in _SCALARS:
            begin = self._take(_SMALLEST[kind])
            if kind == _BOOL and self._data[begin] > 1:
                self._fail(f"has a truth value of {self._data[begin]} in {key!r:.200}")
        else:
            self._fail(f"has the unknown value type {kind} in {key!r:.200}")

    def _skip_string(self, key: str) -> None:
        length = self.u64()
        if length > MAX_STRING_BYTES:
            self._fail(
                f"has a string of {length} bytes in {key!r:.200}; at most {MAX_STRING_BYTES} are allowed"
            )
        self._take(length)

    def _skip_array(self, key: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            self._fail(f"nests more than {MAX_DEPTH} arrays in {key!r:.200}")
        kind, count = self.u32(), self.u64()
        if kind not in _SMALLEST:
            self._fail(f"has an array of the unknown value type {kind} in {key!r:.200}")
        self.room_for(count, _SMALLEST[kind], f"items in the array {key!r:.200}")
        if kind in _SCALARS:
            self._take(count * _SMALLEST[kind])
            return
        self._items += count
        if self._items > MAX_ITEMS:
            self._fail(f"has more than {MAX_ITEMS} strings in its arrays, the last in {key!r:.200}")
        if kind == _STRING:
            self._skip_strings(count, key)
            return
        for _ in range(count):
            self._skip_value(kind, key, depth)

    def _skip_strings(self, count: int, key: str) -> None:
        """`_skip_string` so many times: vocabularies have hundreds of thousands."""
        at, data, last, unpack = self.at, self._data, self._end - 8, _U64.unpack_from
        for _ in range(count):
            if at > last:
                break
            (length,) = unpack(data, at)
            if length > MAX_STRING_BYTES or length > last - at:
                break
            at += 8 + length
        else:
            self.at = at
            return
        self.at = at
        self._skip_string(key)  # says what is wrong with this one

    def _take(self, size: int) -> int:
        """The offset of the next `size` bytes; moves past them."""
        begin = self.at
        if size > self._end - begin:
            self._fail(f"ends inside its header, at byte {begin}")
        self.at = begin + size
        return begin

    def _fail(self, what: str) -> NoReturn:
        raise CheckpointError(f"{self._where} {what}")


class Metadata(Mapping[str, Any]):
    """Typed values by key, each decoded whenever it is read.

    bool, int, float, str; a list of str for an array of strings, a list of bool, an `array.array` of numbers, and a
    list of such values for arrays of arrays. Reading raises CheckpointError for a string that is not UTF-8.
    """

    def __init__(self, data: Any, places: Mapping[str, _Place], where: str) -> None:
        self._data, self._places, self._where = data, places, where

    def __getitem__(self, key: str) -> Any:
        place = self._places[key]
        return self._value(place.kind, place.begin, key)[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def _value(self, kind: int, begin: int, key: str) -> tuple[Any, int]:
        """(a value that was checked, the offset of the byte after it)."""
        if kind == _STRING:
            return self._string(begin, key)
        if kind == _ARRAY:
            return self._array(begin, key)
        (number,) = struct.unpack_from(_SCALARS[kind][0], self._data, begin)
        return bool(number) if kind == _BOOL else number, begin + _SMALLEST[kind]

    def raw(self, key: str) -> bytes:
        """The type and the value as they lie in the file."""
        place = self._places[key]
        return _U32.pack(place.kind) + bytes(self._data[place.begin : place.end])

    def _string(self, begin: int, key: str) -> tuple[str, int]:
        begin, end = begin + 8, begin + 8 + int(_U64.unpack_from(self._data, begin)[0])
        try:
            return bytes(self._data[begin:end]).decode(), end
        except UnicodeDecodeError:
            raise CheckpointError(
                f"{self._where} has a string in {key!r:.200} that is not UTF-8, at byte {begin}"
            ) from None

    def _strings(self, count: int, begin: int, key: str) -> tuple[list[str], int]:
        data, unpack = self._data, _U64.unpack_from
        values = []
        try:
            for _ in range(count):
                end = begin + 8 + unpack(data, begin)[0]
                values.append(str(data[begin + 8 : end], "utf-8"))
                begin = end
        except UnicodeDecodeError:
            self._string(begin, key)  # says where
            raise
        return values, begin

    def _array(self, begin: int, key: str) -> tuple[Any, int]:
        kind = int(_U32.unpack_from(self._data, begin)[0])
        count = int(_U64.unpack_from(self._data, begin + 4)[0])
        begin += 12
        if kind in _SCALARS:
            end = begin + count * _SMALLEST[kind]
            numbers = array.array(_SCALARS[kind][1], bytes(self._data[begin:end]))
            if sys.byteorder == "big":
                numbers.byteswap()
            return [bool(number) for number in numbers] if kind == _BOOL else numbers, end
        if kind == _STRING:
            return self._strings(count, begin, key)
        values = []
        for _ in range(count):
            value, begin = self._value(kind, begin, key)
            values.append(value)
        return values, begin


def read_metadata(cursor: Cursor, count: int, data: Any, where: str) -> Metadata:
    """Check `count` keys and values, and move past them. Raises CheckpointError."""
    cursor.room_for(count, 14, "keys of metadata")  # a key of one byte, a type, a value of one byte
    places: dict[str, _Place] = {}
    for _ in range(count):
        key = cursor.text(MAX_KEY_BYTES, "a key of metadata")
        if key in places:
            raise CheckpointError(f"{where} has the key {key!r:.200} twice")
        places[key] = cursor.skip(key)
    return Metadata(data, places, where)
