"""Every metric of /metrics: name, kind, meaning, and where its values come from.

Names without the prefix are vLLM's wherever the thing is the same. Every sample has the label `model_name`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.core.scheduler import STEP_SIZES
from headrace.server.access.traffic import Traffic
from headrace.server.observability.counts import Histogram, LoopLag, Tallies, cumulative
from headrace.server.observability.engine_totals import EngineTotals
from headrace.serving.client.base import AsyncClient
from headrace.serving.engine.state import EngineState, ModelFacts

PREFIX = "headrace:"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where values come from."""

    client: AsyncClient
    facts: ModelFacts
    traffic: Traffic
    tallies: Tallies
    engine: EngineTotals
    lag: LoopLag
    dropped_log_lines: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Buckets:
    """(upper bound, values up to it) and the sum of all values."""

    buckets: Sequence[tuple[str, int]]
    total: float


Value = float | Buckets
Samples = Iterable[tuple[tuple[str, ...], Value]]
"""(values of the labels, value)"""


@dataclass(frozen=True, slots=True)
class Metric:
    """`kind` is Prometheus' "counter", "gauge" or "histogram"."""

    name: str
    kind: str
    help: str
    read: Callable[[Sources], Samples]
    labels: tuple[str, ...] = ()

    @property
    def exposed(self) -> str:
        """The name as scrapes and queries have it."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


def _one(value: float) -> Samples:
    return [((), value)]


def _histogram(read: Callable[[Tallies], Histogram]) -> Callable[[Sources], Samples]:
    def samples(sources: Sources) -> Samples:
        histogram = read(sources.tallies)
        return [((), Buckets(histogram.buckets(), histogram.total))]

    return samples


def _tally(read: Callable[[Tallies], float]) -> Callable[[Sources], Samples]:
    return lambda sources: _one(read(sources.tallies))


def _engine(name: str) -> Callable[[Sources], Samples]:
    return lambda sources: _one(sources.engine[name])


def _running(sources: Sources) -> Samples:
    now = sources.engine.now
    return _one(0 if now is None else now.running)


def _waiting(sources: Sources) -> Samples:
    now = sources.engine.now
    return _one(0 if now is None else now.waiting)


def _kv_usage(sources: Sources) -> Samples:
    now = sources.engine.now
    if now is None or not now.total_blocks:
        return _one(0.0)
    return _one(1 - now.free_blocks / now.total_blocks)


def _cache_config(sources: Sources) -> Samples:
    facts = sources.facts
    told = (facts.block_size, facts.num_kv_blocks, facts.max_model_len or 0, facts.max_num_seqs, facts.dtype)
    return [(tuple(str(value) for value in told), 1)]


def _step_sizes(sources: Sources) -> Samples:
    engine = sources.engine
    sizes = [engine[f"step_size {power}"] for power in range(STEP_SIZES)]
    bounds = [2.0**power for power in range(STEP_SIZES - 1)]
    return [((), Buckets(cumulative(bounds, sizes), engine["scheduled_tokens"]))]


def _misses(sources: Sources) -> Samples:
    return [((reason,), count) for reason, count in sources.engine.under("miss ").items()]


def _finished(sources: Sources) -> Samples:
    return [((reason,), count) for reason, count in sources.tallies.finished.items()]


def _http(sources: Sources) -> Samples:
    return list(sources.tallies.http.items())


def _lag(sources: Sources) -> Samples:
    histogram = sources.lag.histogram
    return [((), Buckets(histogram.buckets(), histogram.total))]


def _states(sources: Sources) -> Samples:
    return [((state.value,), int(sources.client.state is state)) for state in EngineState]


def _rejections(sources: Sources) -> Samples:
    usage = sources.traffic.usage
    counts = {"unauthorized": usage.unauthorized}
    for _, used in usage.items():
        for code, count in used.refused.items():
            counts[code] = counts.get(code, 0) + count
    return [((code,), count) for code, count in sorted(counts.items())]


def _per_key(read: Callable[[object], int]) -> Callable[[Sources], Samples]:
    return lambda sources: [((name,), read(used)) for name, used in sources.traffic.usage.items()]


def _used(name: str) -> Callable[[Sources], Samples]:
    return _per_key(lambda used: int(getattr(used, name)))


def _key_rejections(sources: Sources) -> Samples:
    return [
        ((name, code), count)
        for name, used in sources.traffic.usage.items()
        for code, count in used.refused.items()
    ]


def _queue(name: str) -> Callable[[Sources], Samples]:
    def samples(sources: Sources) -> Samples:
        queue = sources.traffic.admission
        return [] if queue is None else _one(getattr(queue, name))

    return samples


METRICS: tuple[Metric, ...] = (
    # The engine now.
    Metric("num_requests_running", "gauge", "Completions in the batch that runs.", _running),
    Metric("num_requests_waiting", "gauge", "Completions that wait to be scheduled, preempted ones included.",
           _waiting),
    Metric("kv_cache_usage_perc", "gauge", "Share of the KV blocks in use; 1 is all of them.", _kv_usage),
    Metric("cache_config_info", "gauge", "Always 1; the labels say how the engine was set up.", _cache_config,
           ("block_size", "num_kv_blocks", "max_model_len", "max_num_seqs", "dtype")),
    Metric("engine_state", "gauge", "1 for the state that the engine is in.", _states, ("state",)),
    Metric("engine_restarts", "counter", "Engines that were started after the first.",
           lambda sources: _one(sources.client.restarts)),

    # Tokens and steps.
    Metric("prompt_tokens", "counter", "Prompt tokens that were computed or cached, of requests that have ended.",
           _tally(lambda tallies: tallies.prompt_tokens)),
    Metric("prompt_tokens_cached", "counter", "Of these, the ones taken from the prefix cache.",
           _tally(lambda tallies: tallies.cached_tokens)),
    Metric("generation_tokens", "counter", "Output tokens.", _tally(lambda tallies: tallies.generation_tokens)),
    Metric("iteration_tokens_total", "histogram", "Tokens that a step of the engine computed.", _step_sizes),
    Metric("num_preemptions", "counter", "Times that a sequence gave its KV blocks back, to be recomputed later.",
           _engine("preemptions")),

    # The prefix cache.
    Metric("prefix_cache_queries", "counter", "Tokens that were looked up in the prefix cache.", _engine("queries")),
    Metric("prefix_cache_hits", "counter", "Of these, the ones that were found.", _engine("hits")),
    Metric("prefix_cache_evictions", "counter", "Blocks whose content was given up for other tokens.",
           _engine("evictions")),
    Metric("prefix_cache_pins", "counter", "Blocks that requests have pinned for a time, not counting prolonged pins.",
           _engine("pins")),
    Metric("prefix_cache_pins_broken", "counter",
           "Of these, the ones whose pin ended before its time, for lack of other blocks.", _engine("pins broken")),
    Metric("prefix_cache_lookups", "counter", "Lookups, by the reason that no more was found.", _misses,
           ("reason",)),

    # Latencies as callers see them.
    Metric("time_to_first_token_seconds", "histogram", "Arrival of the HTTP request to its first output token.",
           _histogram(lambda tallies: tallies.ttft)),
    Metric("inter_token_latency_seconds", "histogram", "From one piece of a completion to the next.",
           _histogram(lambda tallies: tallies.itl)),
    Metric("e2e_request_latency_seconds", "histogram",
           "Arrival of the HTTP request to the end of its answer, for requests that the engine accepted.",
           _histogram(lambda tallies: tallies.e2e)),

    # Latencies of each prompt on the engine's clock.
    Metric("request_time_per_output_token_seconds", "histogram",
           "Mean time between the output tokens of a prompt's completions.", _histogram(lambda tallies: tallies.tpot)),
    Metric("request_queue_time_seconds", "histogram", "Arrival at the engine to the first time in a step.",
           _histogram(lambda tallies: tallies.queue)),
    Metric("request_prefill_time_seconds", "histogram", "First time in a step to the first output token.",
           _histogram(lambda tallies: tallies.prefill)),
    Metric("request_decode_time_seconds", "histogram", "First output token to the last.",
           _histogram(lambda tallies: tallies.decode)),
    Metric("request_inference_time_seconds", "histogram", "Prefill and decode together.",
           _histogram(lambda tallies: tallies.inference)),

    # What was asked, and how it ended.
    Metric("request_success", "counter", "Completions that have ended, by the reason why.", _finished,
           ("finished_reason",)),
    Metric("request_prompt_tokens", "histogram", "Tokens of a prompt that were computed or cached.",
           _histogram(lambda tallies: tallies.prompt_length)),
    Metric("request_prefill_kv_computed_tokens", "histogram", "Tokens of a prompt that were not cached.",
           _histogram(lambda tallies: tallies.computed_length)),
    Metric("request_generation_tokens", "histogram", "Output tokens of a completion.",
           _histogram(lambda tallies: tallies.output_length)),
    Metric("request_max_num_generation_tokens", "histogram", "Output tokens of a prompt's longest completion.",
           _histogram(lambda tallies: tallies.longest_output)),
    Metric("request_params_n", "histogram", "n as requests ask for it.", _histogram(lambda tallies: tallies.n)),
    Metric("request_params_max_tokens", "histogram", "max_tokens as requests ask for it.",
           _histogram(lambda tallies: tallies.max_tokens)),

    # Traffic.
    Metric("http_requests", "counter", "HTTP requests that have ended.", _http, ("route", "method", "status")),
    Metric("admission_rejections", "counter", "Requests that were refused before they ran, by the code of the error.",
           _rejections, ("reason",)),
    Metric("queue_completions", "gauge", "Completions that run or wait, as --max-queue counts them.",
           _queue("completions")),
    Metric("queue_tokens", "gauge", "Tokens that they are charged, as --max-queue-tokens counts them.",
           _queue("tokens")),
    Metric("queue_max_completions", "gauge", "--max-queue.", _queue("max_completions")),
    Metric("queue_max_tokens", "gauge", "--max-queue-tokens.", _queue("max_tokens")),
    Metric("key_requests", "counter", "Accepted requests, by the name of the key.", _used("requests"), ("key",)),
    Metric("key_prompt_tokens", "counter", "Prompt tokens, by the name of the key.", _used("prompt_tokens"),
           ("key",)),
    Metric("key_cached_tokens", "counter", "Cached prompt tokens, by the name of the key.", _used("cached_tokens"),
           ("key",)),
    Metric("key_generation_tokens", "counter", "Output tokens, by the name of the key.", _used("completion_tokens"),
           ("key",)),
    Metric("key_rejections", "counter", "Refused requests, by the name of the key and the code of the error.",
           _key_rejections, ("key", "reason")),

    # The server itself.
    Metric("event_loop_lag_seconds", "histogram", "How late the server's event loop is, sampled in equal intervals.",
           _lag),
    Metric("log_lines_dropped", "counter", "Lines of log that could not be written.",
           lambda sources: _one(sources.dropped_log_lines())),
)  # fmt: skip
