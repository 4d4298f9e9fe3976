"""/metrics, read by Prometheus' own parser; two scrapes can be subtracted."""

from __future__ import annotations

import time
from collections.abc import Mapping

import httpx
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.waiting import LONG_S

PREFIX = "headrace:"
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}

Key = tuple[str, frozenset[tuple[str, str]]]


class Scrape:
    """Samples by name and labels; `model_name`, which all have, is left out."""

    def __init__(self, samples: Mapping[Key, float]) -> None:
        self.samples = dict(samples)

    @classmethod
    def of(cls, text: str, openmetrics: bool = False) -> Scrape:
        samples: dict[Key, float] = {}
        for family in (parse_openmetrics if openmetrics else parse_text)(text):
            for sample in family.samples:
                labels = frozenset((k, v) for k, v in sample.labels.items() if k != "model_name")
                assert (sample.name, labels) not in samples, (
                    f"{sample.name} {dict(labels)} stands there twice"
                )
                samples[sample.name, labels] = sample.value
        return cls(samples)

    @classmethod
    def take(cls, http: httpx.Client, openmetrics: bool = False) -> Scrape:
        answer = http.get("/metrics", headers=OPENMETRICS if openmetrics else {})
        assert answer.status_code == 200, answer.text
        return cls.of(answer.text, openmetrics)

    @classmethod
    def since_then(cls, http: httpx.Client, before: Scrape, answers: int) -> Scrape:
        """What was added, once so many answers are counted: a stream is counted just after its last byte."""
        deadline = time.monotonic() + LONG_S
        while (seen := cls.take(http).since(before))["e2e_request_latency_seconds_count"] < answers:
            assert time.monotonic() < deadline
        return seen

    def __getitem__(self, name: str) -> float:
        """A sample of ours without further labels."""
        return self.get(name)

    def get(self, name: str, **labels: str) -> float:
        return self.samples.get((PREFIX + name, frozenset(labels.items())), 0.0)

    def under(self, name: str, label: str) -> dict[str, float]:
        """Samples of a name by one of their labels, without those that are 0."""
        found: dict[str, float] = {}
        for (sample, labels), value in self.samples.items():
            if sample == PREFIX + name and value:
                found[dict(labels)[label]] = found.get(dict(labels)[label], 0) + value
        return found

    def since(self, before: Scrape) -> Scrape:
        return Scrape({key: value - before.samples.get(key, 0.0) for key, value in self.samples.items()})

    def histogram(self, name: str) -> tuple[int, float]:
        """(values, their sum); checks that the buckets rise up to their count."""
        buckets = sorted(
            (float(dict(labels)["le"]), value)
            for (sample, labels), value in self.samples.items()
            if sample == f"{PREFIX}{name}_bucket"
        )
        counts = [value for _, value in buckets]
        assert counts == sorted(counts) and buckets[-1][0] == float("inf"), buckets
        assert counts[-1] == self[f"{name}_count"]
        return int(self[f"{name}_count"]), self[f"{name}_sum"]
