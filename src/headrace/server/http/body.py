"""Bounds on request bodies: their size, and the work of parsing them, checked while they arrive.

A parser cannot be interrupted: while it runs, no other request is served, whatever thread it runs in. And it is not
bytes that cost time, but values: a text of megabytes is read in milliseconds, as many bytes of empty lists in seconds.
So values are counted piece by piece, by the signs that stand outside of texts, before anything is parsed.

for their size before they are read.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.http.errors import error_body

COSTS = {"0123456789": 1, ",": 8, ".eE": 16, ":": 36, "[{": 40}
"""What a value costs by its signs, in units of 12 to 20 nanoseconds: each digit of a number, an element of a list, a
number with a fraction or an exponent, a key, a list, an object. What is done with values behind the parser is in it."""

MAX_WORK = 2**22
"""320,000 token ids of five digits, 30,000 messages with a role and a content: less than a tenth of a second."""

HARMLESS_BYTES = MAX_WORK // max(COSTS.values())
"""A body of so many bytes cannot cost more than that."""

_PIECE = 2**16
_SIGNS = tuple((signs.encode(), cost) for signs, cost in COSTS.items())


class BodyWork:
    """The cost of the pieces so far: of all that a parser reads, up to where it finds that the body is no JSON."""

    def __init__(self) -> None:
        self.units = 0
        self._inside = 0  # 1: of a text
        self._held = b""  # an escape whose character is still to come
        self._wide = False

    def add(self, data: bytes) -> int:
        """Count the next piece of the body; gives the cost so far."""
        for at in range(0, len(data), _PIECE):
            piece = data[at : at + _PIECE]
            # A zero is in no JSON but UTF-16 and UTF-32, where bytes are not characters: all of them count there.
            self._wide = self._wide or b"\0" in piece
            self.units += _cost(piece if self._wide else self._outside(piece))
        return self.units

    def _outside(self, piece: bytes) -> bytes:
        """What is no text."""
        parts = self._unescaped(piece).split(b'"')
        begin, self._inside = self._inside, (self._inside + len(parts) - 1) % 2
        return b"".join(parts[begin::2])

    def _unescaped(self, piece: bytes) -> bytes:
        """Without the quotes that end no text."""
        piece, self._held = self._held + piece, b""
        if b"\\" in piece:
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                piece, self._held = piece[:-1], b"\\"
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        return piece


def _cost(text: bytes) -> int:
    units = 0
    for signs, cost in _SIGNS:
        rest = text.translate(None, signs)
        units += cost * (len(text) - len(rest))
        text = rest
    return units


MAX_BODY_BYTES = 16 * 2**20
"""A text of so many bytes is read in less than a tenth of a second."""

_TOO_MUCH = "the body holds more values than can be read while others wait: send it as several requests"


class BodyLimit:
    """ASGI middleware: 413 for a body of more than `limit` bytes, or of more work than MAX_WORK."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = _announced(scope)
        if announced is not None and announced > self._limit:
            response = JSONResponse(error_body(self._sentence, 413, "request_too_large"), 413)
            await response(scope, receive, send)
            return
        received = 0
        work = None if announced is not None and announced <= HARMLESS_BYTES else BodyWork()

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            body = message.get("body", b"")
            received += len(body)
            if received > self._limit:
                raise HTTPException(413, self._sentence)
            if work is not None and work.add(body) > MAX_WORK:
                raise HTTPException(413, _TOO_MUCH)
            return message

        await self._app(scope, counted, send)

    @property
    def _sentence(self) -> str:
        return f"the body is larger than {self._limit} bytes"


def _announced(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return None
