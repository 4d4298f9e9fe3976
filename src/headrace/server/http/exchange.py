"""The current HTTP request: what error answers say of it, and record for it."""

from __future__ import annotations

from contextvars import ContextVar


class Exchange:
    """One request and its answer. `request_id`: in X-Request-Id and in logs. `error`: the code of an error, also of one
    in the middle of a stream; None without one."""

    __slots__ = ("error", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.error: str | None = None

    def make_current(self) -> None:
        _current.set(self)


def current_exchange() -> Exchange | None:
    """The exchange of the current request; None outside of one."""
    return _current.get()


_current: ContextVar[Exchange | None] = ContextVar("headrace_exchange", default=None)
