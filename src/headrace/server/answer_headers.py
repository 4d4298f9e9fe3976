"""Headers that every answer has: a name for the request, and a word to caches that they may not keep it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

MAX_REQUEST_ID_CHARS = 128

EVERYWHERE = (("X-Content-Type-Options", "nosniff"),)
"""For the HTTP layer itself, which answers what is no request at all."""

NO_STORE = "no-store"

_Headers = Iterable[tuple[bytes, bytes]]

_PLAIN = re.compile(rb"[A-Za-z0-9._:+=@/-]{1,%d}" % MAX_REQUEST_ID_CHARS)
"""Nothing that a log, a shell or a page would read as more than a name."""


def request_id(headers: _Headers) -> str:
    """The caller's X-Request-Id, if it is the only one, short and plain; else a new one.

    It is a name for logs and people, and nothing is looked up by it: two requests may bear the same.
    """
    given = [value for name, value in headers if name == b"x-request-id"]
    if len(given) == 1 and _PLAIN.fullmatch(given[0]):
        return given[0].decode()
    return f"req_{uuid.uuid4().hex}"


def completed(headers: _Headers, request_id: str) -> list[tuple[bytes, bytes]]:
    """Headers of an answer with those that all have; what it says itself of caches holds."""
    whole = [*headers, (b"x-request-id", request_id.encode())]
    if not any(name == b"cache-control" for name, _ in whole):
        whole.append((b"cache-control", NO_STORE.encode()))
    return whole
