"""One line of log for each request that has ended: who, what, how much and how long; no prompt, no output, no key."""

from __future__ import annotations

import logging

from headrace.server.observability.logs import FIELDS
from headrace.server.observability.observer import NO_ROUTE
from headrace.server.observability.record import RequestRecord

PROBES = frozenset({"/health", "/ready", "/metrics"})
"""What machines ask every few seconds is a matter of debugging, as long as it goes well."""

_DIGITS = 6

_log = logging.getLogger("headrace.request")


def log_request(record: RequestRecord) -> None:
    """Log at info; cheap where nobody wants to know."""
    well = record.status is not None and record.status < 400
    level = logging.DEBUG if well and record.route in PROBES else logging.INFO
    if _log.isEnabledFor(level):
        fields = request_fields(record)
        _log.log(level, "%s", _sentence(fields), extra={FIELDS: fields})


def request_fields(record: RequestRecord) -> dict[str, object]:
    """Everything that is told of a request; of one that gave the engine no work, only what HTTP knows."""
    fields: dict[str, object] = {
        "method": record.method if len(record.method) <= 16 else "other",
        "route": record.route or NO_ROUTE,
        "status": record.status,
        "request_id": record.request_id,
        "key": record.caller or None,
        "e2e_s": round(record.e2e_s, _DIGITS),
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
            "queue_s": _rounded(record.queue_s),
            "ttft_s": _rounded(record.ttft_s),
            "finish_reasons": work.finish_reasons,
        }
    return fields


def _sentence(fields: dict[str, object]) -> str:
    first = f"{fields['method']} {fields['route']} {fields['status']}"
    rest = (f"{name}={value}" for name, value in fields.items() if name not in ("method", "route", "status"))
    return " ".join([first, *rest])


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, _DIGITS)
