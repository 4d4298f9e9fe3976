"""JSON written in parts of bounded size, so that the event loop can serve others between them.

The encoder cannot be interrupted, and holds the interpreter's lock in any thread: an answer of ten megabytes, encoded
in one call, blocks other callers for a tenth of a second.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PART_CHARS = 2**16
"""Encoded in one call, about."""

_NODE_CHARS = 16  # cost of a value beside its text
_NUMBERS = {int, float, bool}
_LEAVES = {*_NUMBERS, type(None)}
_NUMBERS_A_PART = PART_CHARS // _NODE_CHARS
_PART_COST = 2**8
"""Cost of a part beside its bytes: an answer of many small JsonLists has many small parts."""
_LARGE = PART_CHARS // 8
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encoded(value: Any) -> bytes:
    """A small value as JSON. Raises ValueError for NaN and infinities."""
    return _ENCODER.encode(value).encode()


def rounded(seconds: float | None, digits: int = 6) -> float | None:
    return None if seconds is None else round(seconds, digits)


Value = TypeVar("Value")


class JsonList(Generic[Value]):
    """A growing list, stored as encoded bytes, which take a fraction of the memory of its objects."""

    __slots__ = ("_parts", "_tail", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._tail = bytearray(b"[")
        self.size = 0
        """In bytes."""

    def extend(self, items: Sequence[Value]) -> None:
        """Add a few values; they are encoded in one call."""
        if not items:
            return
        if self.size:
            self._tail += b","
        part = encoded(items)[1:-1]
        self._tail += part
        self.size += len(part)
        if len(self._tail) >= PART_CHARS:
            self._parts.append(bytes(self._tail))
            self._tail = bytearray()

    def parts(self) -> Iterator[bytes]:
        yield from self._parts
        yield bytes(self._tail) + b"]"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(list[get_args(source)[0]])  # type: ignore[misc]  # what it is in OpenAPI


class JsonNumbers:
    """A list of numbers that is encoded once and written in several places, which share its bytes."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts

    @classmethod
    async def of(cls, values: Sequence[int]) -> JsonNumbers:
        """A list of any length; the event loop serves others between its parts."""
        if not values:
            return cls([b"[]"])
        parts: list[bytes] = []
        for at in range(0, len(values), _NUMBERS_A_PART):
            if at:
                await asyncio.sleep(0)
            part = encoded(values[at : at + _NUMBERS_A_PART])[:-1]
            parts.append(b"," + part[1:] if at else part)
        parts[-1] += b"]"
        return cls(parts)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(list[int])


def json_parts(value: Any) -> Iterator[bytes]:
    """The JSON of a value, which may contain JsonLists and JsonNumbers, in parts of about PART_CHARS."""
    if isinstance(value, JsonList):
        yield from value.parts()
    elif isinstance(value, JsonNumbers):
        yield from value.parts
    elif _weight(value, PART_CHARS) > 0:
        yield encoded(value)
    elif isinstance(value, str):
        yield b'"'
        for at in range(0, len(value), PART_CHARS):
            yield encoded(value[at : at + PART_CHARS])[1:-1]
        yield b'"'
    elif isinstance(value, dict):
        before = b"{"
        for key, item in value.items():
            yield before + encoded(key) + b":"
            yield from json_parts(item)
            before = b","
        yield b"}"
    else:
        yield b"["
        yield from _items(value)
        yield b"]"


def _items(values: Sequence[Any]) -> Iterator[bytes]:
    """The JSON between the brackets of a list: light items together, each heavy one in parts of its own."""
    if set(map(type, values)) <= _NUMBERS:
        for at in range(0, len(values), _NUMBERS_A_PART):
            yield (b"," if at else b"") + encoded(values[at : at + _NUMBERS_A_PART])[1:-1]
        return
    light: list[Any] = []
    left, first = PART_CHARS, True
    for item in values:
        rest = _weight(item, left)
        if rest > 0:
            light.append(item)
            left = rest
            continue
        if light:
            yield (b"" if first else b",") + encoded(light)[1:-1]
            first = False
        light, left = [], PART_CHARS
        if (rest := _weight(item, left)) > 0:
            light, left = [item], rest
            continue
        if not first:
            yield b","
        yield from json_parts(item)
        first = False
    if light:
        yield (b"" if first else b",") + encoded(light)[1:-1]


def _weight(value: Any, left: int) -> int:
    """`left` minus about the characters of a value; 0 or less for a heavy value, which is not read to its end."""
    if type(value) in _LEAVES:
        return left - _NODE_CHARS
    if isinstance(value, str):
        return left - _NODE_CHARS - len(value)
    if isinstance(value, (JsonList, JsonNumbers)):
        return 0
    left -= _NODE_CHARS
    if isinstance(value, dict):
        for key, item in value.items():
            left = _weight(item, left - len(key))
            if left <= 0:
                break
    elif isinstance(value, (list, tuple)):
        if len(value) * _NODE_CHARS >= left:
            return 0
        kinds = set(map(type, value))
        if kinds <= _NUMBERS:
            return left - len(value) * _NODE_CHARS
        if kinds == {str}:
            return left - len(value) * _NODE_CHARS - sum(map(len, value))
        for item in value:
            left = _weight(item, left)
            if left <= 0:
                break
    return left


def pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Joins small parts; large ones are passed on uncopied, as other answers may share them."""
    small: list[bytes] = []
    size = 0
    for part in parts:
        large = len(part) >= _LARGE
        if small and (large or size >= PART_CHARS):
            yield b"".join(small)
            small, size = [], 0
        if large:
            yield part
        else:
            small.append(part)
            size += _PART_COST + len(part)
    if small:
        yield b"".join(small)


async def json_response(value: Any, held: object = None) -> Response:
    """An answer of any size; the event loop serves others between its parts. It keeps `held`.

    Raises ValueError for NaN and infinities.
    """
    body: list[bytes] = []
    for piece in pieces(json_parts(value)):
        body.append(piece)
        await asyncio.sleep(0)
    return PartsResponse(body, held)


class PartsResponse(Response):
    """A body of known length, sent part by part as fast as the caller reads; it keeps `held` until then."""

    media_type = "application/json"

    def __init__(self, parts: Sequence[bytes], held: object = None) -> None:
        super().__init__()
        self._parts = parts
        self._held = held
        self.headers["content-length"] = str(sum(map(len, parts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for number, part in enumerate(self._parts, start=1):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(self._parts)})
            await asyncio.sleep(0)
