"""Observes every request: when it came and how it ended; adds it to the counts, and logs it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.core.types import FinishReason
from headrace.server.access.keys import ANYONE
from headrace.server.http.headers import completed
from headrace.server.http.json_parts import rounded
from headrace.server.requests.record import RequestRecord, Work
from headrace.server.requests.tallies import Tallies
from headrace.serving.logs import FIELDS
from headrace.serving.requests.outputs import RequestMetrics
from headrace.serving.system import MONOTONIC, Clock

NO_ROUTE = "none"
Sink = Callable[[RequestRecord], None]
"""Called with each request that has ended."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OTHER_METHOD = "other"

PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Polled every few seconds, so successful requests for them are logged at debug."""

_log = logging.getLogger(__name__)
_request_log = logging.getLogger("headrace.request")


def tally(record: RequestRecord) -> None:
    """Add one request to the tallies."""
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


def log_request(record: RequestRecord) -> None:
    """One line for each request that has ended, without prompt, output or key. Cheap if the level is off."""
    well = record.status is not None and record.status < 400
    level = logging.DEBUG if well and record.route in PROBES else logging.INFO
    if _request_log.isEnabledFor(level):
        fields = request_fields(record)
        _request_log.log(level, "%s", _sentence(fields), extra={FIELDS: fields})


def request_fields(record: RequestRecord) -> dict[str, object]:
    """The fields of the log line; those about tokens only for requests that the engine computed."""
    fields: dict[str, object] = {
        "method": record.method if len(record.method) <= 16 else "other",
        "route": record.route or NO_ROUTE,
        "status": record.status,
        "request_id": record.request_id,
        "key": record.caller or None,
        "e2e_s": rounded(record.e2e_s),
        "aborted": record.aborted,
        "error": record.error,
    }
    if record.embedded is not None:
        fields["prompt_tokens"], fields["cached_tokens"] = record.embedded
    work = record.work
    if work is not None:
        fields |= {
            "id": work.name,
            "stream": work.stream,
            "prompt_tokens": sum(work.prompt_tokens),
            "cached_tokens": record.cached_tokens,
            "output_tokens": work.output_tokens,
            "queue_s": rounded(record.queue_s),
            "ttft_s": rounded(record.ttft_s),
            "finish_reasons": work.finish_reasons,
        }
    return fields


def _sentence(fields: dict[str, object]) -> str:
    first = f"{fields['method']} {fields['route']} {fields['status']}"
    rest = (f"{name}={value}" for name, value in fields.items() if name not in ("method", "route", "status"))
    return " ".join([first, *rest])


class Observer:
    """ASGI middleware, outside of everything that may refuse a request. A sink that fails is logged."""

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
            record.status = record.status or 500  # sent by the middleware outside of this one
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
                _log.error("a request could not be recorded", exc_info=error)
