"""The table of metrics in the formats that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.registry import Collector

from headrace.server.seeing.table import METRICS, PREFIX, Buckets, Metric, Sources

MAX_LABEL_CHARS = 200

OPENMETRICS = "application/openmetrics-text"
_AS_THEY_ARE = "allow-utf-8"  # the other ways to write names turn the colon of the prefix into an underscore
_OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"


class Exposition:
    """Reads the sources anew for each scrape; nothing of it is global to the process."""

    def __init__(self, sources: Sources, model_name: str) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._table = _Table(sources, model_name)
        self._registry.register(self._table)
        ProcessCollector(registry=self._registry)  # memory, CPU time and open files of this process

    def text(self, accept: str) -> tuple[bytes, str]:
        """(body, content type); OpenMetrics where the Accept header names it."""
        if OPENMETRICS in accept:
            return bytes(as_openmetrics(self._registry, _AS_THEY_ARE)), _OPENMETRICS_TYPE  # type: ignore[no-untyped-call]
        return as_text(self._registry), CONTENT_TYPE_PLAIN_0_0_4


class _Table(Collector):
    def __init__(self, sources: Sources, model_name: str) -> None:
        self._sources = sources
        self._model_name = model_name

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            yield _family(metric, self._sources, self._model_name)


def _family(metric: Metric, sources: Sources, model_name: str) -> Family:
    name, labels = PREFIX + metric.name, ("model_name", *metric.labels)
    samples = [
        (tuple(safe_label(value) for value in (model_name, *values)), value)
        for values, value in metric.read(sources)
    ]
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, metric.help, labels=labels)
        for values, value in samples:
            assert isinstance(value, Buckets)
            histogram.add_metric(values, value.buckets, value.total)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(name, metric.help, labels=labels)
    for values, value in samples:
        assert not isinstance(value, Buckets)
        family.add_metric(values, value)
    return family


def safe_label(text: str) -> str:
    """A label's value that can be written as UTF-8 on one line, whatever a name holds."""
    plain = text[:MAX_LABEL_CHARS].encode("utf-8", "replace").decode()
    return "".join(char if char.isprintable() else "�" for char in plain)
