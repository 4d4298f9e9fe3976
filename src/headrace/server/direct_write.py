"""A way from an application to its connection without a wait, for answers that come in many small parts.

An ASGI server may offer extensions in a request's scope; this one is ours, offered by GuardedProtocol. `send` is still
how an answer begins and ends, and how a part is sent to a caller who does not read as fast as the parts come.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope

Write = Callable[[bytes], bool]
"""Writes a part of the answer's body, which has begun. False where nothing was written: use `send`, which waits."""

_NAME = "headrace.direct_write"


def offer(scope: Scope, write: Write) -> None:
    """Let whoever answers the request write directly."""
    scope.setdefault("extensions", {})[_NAME] = write


def direct_write(scope: Scope) -> Write | None:
    """What the server offers for this request, if it does."""
    write: Write | None = scope.get("extensions", {}).get(_NAME)
    return write
