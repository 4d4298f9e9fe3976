"""Metrics: how they are defined, and those of an engine. `headrace.server` adds those of requests and HTTP.

Names without the prefix are vLLM's if the meaning is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Literal, TypeVar

from headrace.core.scheduler_counts import STEP_SIZES
from headrace.serving.totals import EngineTotals

PREFIX = "headrace:"

Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class Buckets:
    """(upper bound, values up to it) and the sum of all values."""

    buckets: Sequence[tuple[str, int]]
    total: float


Kind = Literal["counter", "gauge", "histogram"]
Value = float | Buckets
Samples = Iterable[tuple[tuple[str, ...], Value]]
"""(values of the labels, value)"""


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """`kind` is Prometheus'; `read` takes the samples from a source."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Source], Samples]
    labels: tuple[str, ...] = ()

    @property
    def exposed(self) -> str:
        """The name in scrapes and queries."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int]]:
    """As `Histogram.buckets`; there is one more count than bounds."""
    names = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))


def one(value: float) -> Samples:
    """The only sample of a metric without labels."""
    return [((), value)]


def _sum(name: str) -> Callable[[EngineTotals], Samples]:
    return lambda totals: one(totals[name])


def _now(name: str) -> Callable[[EngineTotals], Samples]:
    return lambda totals: one(0 if totals.now is None else getattr(totals.now, name))


def _kv_usage(totals: EngineTotals) -> Samples:
    now = totals.now
    return one(1 - now.free_blocks / now.total_blocks if now is not None and now.total_blocks else 0.0)


def _roofline(totals: EngineTotals) -> Samples:
    share = None if totals.now is None else totals.now.roofline_fraction
    return [] if share is None else one(share)


def _step_sizes(totals: EngineTotals) -> Samples:
    sizes = [totals[f"step_size {power}"] for power in range(STEP_SIZES)]
    bounds = [2.0**power for power in range(STEP_SIZES - 1)]
    return [((), Buckets(cumulative(bounds, sizes), totals["scheduled_tokens"]))]


def labelled(counts: Mapping[str, float]) -> Samples:
    """A sample for each value of the one label."""
    return [((label,), count) for label, count in counts.items()]


# The engine now; its steps; the prefix cache.
ENGINE_METRICS: tuple[Metric[EngineTotals], ...] = (
    Metric("num_requests_running", "gauge", "Completions in the running batch.", _now("running")),
    Metric("num_requests_waiting", "gauge", "Completions that wait to be scheduled, preempted ones included.",
           _now("waiting")),
    Metric("kv_cache_usage_perc", "gauge", "Share of the KV blocks in use; 1 is all of them.", _kv_usage),
    Metric("roofline_fraction", "gauge",
           "Share of this machine's limit (memory bandwidth or peak, as `headrace calibrate` measured them) that steps "
           "reach; absent without a measured profile.", _roofline),
    Metric("iteration_tokens_total", "histogram", "Tokens computed in an engine step.", _step_sizes),
    Metric("num_preemptions", "counter", "Preemptions: a sequence lost its KV blocks, and is recomputed later.",
           _sum("preemptions")),
    Metric("kv_evicted_tokens", "counter",
           "Tokens that sequences gave up under --kv-eviction, each counted once for all layers and heads.",
           _sum("kv_evicted_tokens")),
    Metric("spec_decode_num_drafts", "counter", "Drafts that were verified.", _sum("drafts")),
    Metric("spec_decode_num_draft_tokens", "counter", "Drafted tokens that were verified.", _sum("draft_tokens")),
    Metric("spec_decode_num_accepted_tokens", "counter",
           "Drafted tokens that stayed: that were right, or with acceptance rejection or typical passed its test.",
           _sum("accepted_tokens")),
    Metric("spec_decode_num_accepted_tokens_per_pos", "counter", "The same by their position in the draft, from 0.",
           lambda totals: labelled(totals.under("accepted at ")), ("position",)),
    Metric("prefix_cache_queries", "counter", "Tokens looked up in the prefix cache.", _sum("queries")),
    Metric("prefix_cache_hits", "counter", "Tokens found in the prefix cache.", _sum("hits")),
    Metric("prefix_cache_evictions", "counter", "Cached blocks that were reallocated.", _sum("evictions")),
    Metric("prefix_cache_pins", "counter", "Blocks pinned by requests, not counting renewed pins.", _sum("pins")),
    Metric("prefix_cache_pins_broken", "counter", "Pins that ended early, because no other block was free.",
           _sum("pins broken")),
    Metric("prefix_cache_lookups", "counter", "Lookups by the reason why no more was found.",
           lambda totals: labelled(totals.under("miss ")), ("reason",)),
)  # fmt: skip

GENERATION_TOKENS: Metric[EngineTotals] = Metric(
    "generation_tokens", "counter", "Output tokens.", _sum("output_tokens")
)


@dataclass(frozen=True, slots=True)
class MetricSample:
    """The value of a metric now. `name`: as in /metrics of `headrace serve`. `value`: of a histogram, the sum of what
    was observed; `buckets`: (upper bound, how many values up to it), for histograms alone."""

    name: str
    kind: Kind
    labels: Mapping[str, str]
    value: float
    buckets: tuple[tuple[str, int], ...] = ()


def engine_samples(totals: EngineTotals) -> list[MetricSample]:
    """All metrics of an engine."""
    found = []
    for metric in (*ENGINE_METRICS, GENERATION_TOKENS):
        for values, value in metric.read(totals):
            labels = dict(zip(metric.labels, values, strict=True))
            total, buckets = (
                (value.total, tuple(value.buckets)) if isinstance(value, Buckets) else (value, ())
            )
            found.append(MetricSample(metric.exposed, metric.kind, labels, total, buckets))
    return found
