"""Reads a running server's /metrics: values, and shares of a histogram."""

from __future__ import annotations

import math
import re

from headrace.bench.serving.http_client import Address, HttpError, Pool, request_bytes
from headrace.bench.serving.stream import EventBody

_LINE = re.compile(r"^headrace:(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


class ServerMetrics:
    """The metrics of one request to /metrics."""

    def __init__(self, text: str) -> None:
        self._values = {(name, labels): float(value) for name, labels, value in _LINE.findall(text)}

    def value(self, name: str) -> float:
        """The sum over all labels. Raises KeyError where there is no such metric."""
        found = [value for (known, _), value in self._values.items() if known == name]
        if not found:
            raise KeyError(name)
        return sum(found)

    def share_within(self, name: str, bound: float, before: ServerMetrics | None = None) -> float:
        """The share of a histogram's values up to `bound`, which must be one of its own; of those since `before`."""
        within = total = 0.0
        known = False
        for (metric, labels), value in self._values.items():
            if metric != f"{name}_bucket":
                continue
            count = value - (before._values.get((metric, labels), 0.0) if before is not None else 0.0)
            le = float(labels.partition('le="')[2].partition('"')[0])
            if le == bound:
                within, known = within + count, True
            if math.isinf(le):
                total += count
        if not known or not total:
            raise KeyError(f"{name} has no values, or no bound {bound}")
        return within / total


async def read_metrics(address: Address) -> ServerMetrics:
    """Raises HttpError."""
    pool, body = Pool(address), EventBody()
    head = await pool.ask(request_bytes(address, "GET", "/metrics"), body)
    pool.close()
    if head.status != 200:
        raise HttpError(f"/metrics: status {head.status}")
    return ServerMetrics(body.data.decode())
