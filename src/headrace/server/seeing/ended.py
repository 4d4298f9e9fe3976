"""A request has ended: its record becomes counts."""

from __future__ import annotations

from headrace.core.types import FinishReason
from headrace.server.seeing.record import RequestRecord, Work
from headrace.server.seeing.tallies import Tallies
from headrace.serving.outputs import RequestMetrics

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
