"""Limits of request bodies: their size, and the cost of parsing them, checked while they arrive.

A parser cannot be interrupted: while it runs no other request is served, whatever thread it runs in. Its cost depends
on values rather than bytes: a string of megabytes is parsed in milliseconds, as many bytes of empty lists take seconds.
So values are counted piece by piece, by the characters outside of strings, before anything is parsed.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.http.errors import error_body

COSTS = {"0123456789": 1, ",": 8, ".eE": 16, ":": 36, "[{": 40}
"""Costs by character, in units of 12 to 20 nanoseconds: each digit of a number, an element of a list, a number with a
fraction or an exponent, a key, a list or an object. They include what is done with the values after parsing."""

MAX_WORK = 2**22
"""320,000 token ids of five digits, 30,000 messages with a role and a content: less than a tenth of a second."""

HARMLESS_BYTES = MAX_WORK // max(COSTS.values())
"""A body of this size cannot cost more than MAX_WORK."""

MAX_BODY_BYTES = 16 * 2**20
"""A string of this size is parsed in less than a tenth of a second."""

_PIECE = 2**16
_COSTS = tuple((characters.encode(), cost) for characters, cost in COSTS.items())
_TOO_MUCH = "the body holds more values than can be read while others wait: send it as several requests"


class BodyWork:
    """The cost of the pieces so far: of all that a parser reads until it finds that the body is not JSON."""

    def __init__(self) -> None:
        self.units = 0
        self._inside = 0  # 1: of a string
        self._held = b""  # a backslash whose character is in the next piece
        self._wide = False

    def add(self, data: bytes) -> int:
        """Count the next piece of the body; returns the cost so far."""
        for at in range(0, len(data), _PIECE):
            piece = data[at : at + _PIECE]
            # Zero bytes occur only in UTF-16 and UTF-32, where bytes are not characters: all bytes count there.
            self._wide = self._wide or b"\0" in piece
            text = piece if self._wide else self._outside(piece)
            for characters, cost in _COSTS:
                rest = text.translate(None, characters)
                self.units += cost * (len(text) - len(rest))
                text = rest
        return self.units

    def _outside(self, piece: bytes) -> bytes:
        """The characters of the piece that are outside of strings."""
        piece, self._held = self._held + piece, b""
        if b"\\" in piece:
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                piece, self._held = piece[:-1], b"\\"
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        begin, self._inside = self._inside, (self._inside + len(parts) - 1) % 2
        return b"".join(parts[begin::2])


class BodyLimit:
    """ASGI middleware: 413 for a body of more than `limit` bytes, or of more work than MAX_WORK."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_large = f"the body is larger than {self._limit} bytes"
        announced = _announced(scope)
        if announced is not None and announced > self._limit:
            await JSONResponse(error_body(too_large, 413, "request_too_large"), 413)(scope, receive, send)
            return
        received = 0
        work = None if announced is not None and announced <= HARMLESS_BYTES else BodyWork()

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            body = message.get("body", b"")
            received += len(body)
            if received > self._limit:
                raise HTTPException(413, too_large)
            if work is not None and work.add(body) > MAX_WORK:
                raise HTTPException(413, _TOO_MUCH)
            return message

        await self._app(scope, counted, send)


def _announced(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return None
