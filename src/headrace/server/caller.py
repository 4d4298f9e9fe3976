"""Who sends a request, and what that caller may do."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a key. `name` is the only thing about a key that logs, metrics and answers may show.

    weight: share under the fair order, against the other callers' weights. max_priority: the most urgent priority
    that requests may have, where lower numbers are more urgent; None for any. admin: may see what concerns others.
    requests_per_minute, tokens_per_minute: None for no limit.
    """

    name: str
    weight: float = 1.0
    max_priority: int | None = 0
    admin: bool = False
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


ANYONE = Caller("", max_priority=None, admin=True)
"""Whoever calls a server without keys."""

NOBODY = Caller("")
"""Whoever asks for what needs no key, where there are keys."""


def caller_of(request: Request) -> Caller:
    """The caller that the key check found; a FastAPI dependency."""
    caller: Caller = getattr(request.state, "caller", ANYONE)
    return caller
