"""The table of metrics in the formats that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.registry import Collector

from headrace.server.observability.metrics import Sources
from headrace.serving.metrics import PREFIX, Buckets, Metric, Value

MAX_LABEL_CHARS = 200

OPENMETRICS = "application/openmetrics-text"
_UNESCAPED = "allow-utf-8"  # other escaping schemes turn the colon of the prefix into an underscore
_OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"

_Samples = Sequence[tuple[tuple[str, ...], Value]]


class Reading(Collector):
    """Values of one scrape. They do not change, so another thread may write them: with many keys the text is long."""

    def __init__(
        self, samples: Sequence[tuple[Metric[Sources], _Samples]], model_name: str, process: ProcessCollector
    ) -> None:
        self._samples = samples
        self._model_name = safe_label(model_name)
        self._process = process

    def text(self, accept: str) -> tuple[bytes, str]:
        """(body, content type); OpenMetrics if the Accept header names it."""
        if OPENMETRICS in accept:
            body: bytes = as_openmetrics(self, _UNESCAPED)  # type: ignore[no-untyped-call]
            return body, _OPENMETRICS_TYPE
        return as_text(self), CONTENT_TYPE_PLAIN_0_0_4

    def collect(self) -> Iterator[Family]:
        for metric, samples in self._samples:
            yield self._family(metric, samples)
        yield from self._process.collect()

    def _family(self, metric: Metric[Sources], samples: _Samples) -> Family:
        name, labels = PREFIX + metric.name, ("model_name", *metric.labels)
        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(name, metric.help, labels=labels)
            for values, value in samples:
                assert isinstance(value, Buckets)
                histogram.add_metric((self._model_name, *values), value.buckets, value.total)
            return histogram
        sums: dict[tuple[str, ...], float] = {}  # a series that occurs twice makes the whole scrape invalid
        for values, value in samples:
            assert not isinstance(value, Buckets)
            safe = tuple(safe_label(label) for label in values)
            sums[safe] = sums.get(safe, 0) + value
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(name, metric.help, labels=labels)
        for values, total in sums.items():
            family.add_metric((self._model_name, *values), total)
        return family


def safe_label(text: str) -> str:
    """A label's value as UTF-8 on one line, whatever characters a name has."""
    text = text[:MAX_LABEL_CHARS]
    if text.isascii() and text.isprintable():  # the usual case
        return text
    plain = text.encode("utf-8", "replace").decode()
    return "".join(char if char.isprintable() else "�" for char in plain)
