"""Looks at every request from the outside: when it came, how it ended, and who is to be told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.answer_headers import completed
from headrace.server.caller import ANYONE
from headrace.server.seeing.record import RequestRecord
from headrace.server.seeing.tallies import Tallies
from headrace.serving.clock import MONOTONIC, Clock

Sink = Callable[[RequestRecord], None]
"""Is told of each request when it has ended."""

_log = logging.getLogger(__name__)


class Observer:
    """ASGI middleware, outside of all that may refuse a request. A sink that fails is logged and harms nobody."""

    def __init__(
        self, app: ASGIApp, tallies: Tallies, sinks: Sequence[Sink], clock: Clock = MONOTONIC
    ) -> None:
        self._app = app
        self._tallies = tallies
        self._sinks = tuple(sinks)
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(scope["method"], scope["headers"], self._tallies, self._clock, time.time())
        record.make_current()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message = {**message, "headers": completed(message.get("headers", ()), record.request_id)}
            elif not message.get("more_body", False):
                record.ended = self._clock()
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            record.error = record.error or "internal_error"
            record.status = record.status or 500  # which is sent further outside
            raise
        finally:
            self._end(record, scope)

    def _end(self, record: RequestRecord, scope: Scope) -> None:
        if record.ended is None:
            record.ended = self._clock()
        record.route = getattr(scope.get("route"), "path", None)
        record.caller = scope.get("state", {}).get("caller", ANYONE).name
        for sink in self._sinks:
            try:
                sink(record)
            except Exception as error:
                _log.error("a request could not be noted down", exc_info=error)
