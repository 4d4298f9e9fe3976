"""Observes every request: when it came, how it ended, and what that adds to the counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.core.types import FinishReason
from headrace.server.access.keys import ANYONE
from headrace.server.http.headers import completed
from headrace.server.observability.counts import Tallies
from headrace.server.observability.record import RequestRecord, Work
from headrace.serving.requests.outputs import RequestMetrics
from headrace.serving.system import MONOTONIC, Clock

NO_ROUTE = "none"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OTHER_METHOD = "other"


def tally(record: RequestRecord) -> None:
    """Add one request to what its server has counted."""
    tallies = record.tallies
    method = record.method if record.method in METHODS else OTHER_METHOD
    tallies.http[record.route or NO_ROUTE, method, str(record.status or 499)] += 1
    if record.work is not None:
        tallies.e2e.observe(record.e2e_s)
        _tally_work(tallies, record.work, record.error is not None)


def _tally_work(tallies: Tallies, work: Work, failed: bool) -> None:
    cut_off = (FinishReason.ERROR if failed else FinishReason.ABORT).value
    for reason in work.finish_reasons:
        tallies.finished[cut_off if reason is None else reason] += 1
    for metrics in work.metrics:
        tallies.n.observe(work.params.n)
        if work.params.max_tokens is not None:
            tallies.max_tokens.observe(work.params.max_tokens)
        if metrics is not None:
            _tally_times(tallies, metrics)


def _tally_times(tallies: Tallies, metrics: RequestMetrics) -> None:
    for histogram, seconds in (
        (tallies.queue, metrics.queue_s),
        (tallies.prefill, metrics.prefill_s),
        (tallies.decode, metrics.decode_s),
        (tallies.tpot, metrics.tpot_s),
    ):
        if seconds is not None:
            histogram.observe(seconds)
    if metrics.prefill_s is not None and metrics.decode_s is not None:
        tallies.inference.observe(metrics.prefill_s + metrics.decode_s)


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
