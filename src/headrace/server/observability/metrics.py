"""Every metric of /metrics: those of the engine, and name, kind, meaning and source of all others.

Every sample has the label `model_name`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from headrace.server.access.traffic import Traffic
from headrace.server.observability.lag import LoopLag
from headrace.server.requests.tallies import Histogram, Tallies
from headrace.serving.client.base import AsyncClient
from headrace.serving.engine.state import EngineState, ModelFacts
from headrace.serving.metrics import ENGINE_METRICS, Buckets, Metric, Samples, labelled, one
from headrace.serving.totals import EngineTotals


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of values."""

    client: AsyncClient
    facts: ModelFacts
    traffic: Traffic
    tallies: Tallies
    engine: EngineTotals
    lag: LoopLag
    dropped_log_lines: Callable[[], int]


def _buckets(histogram: Histogram) -> Samples:
    return [((), Buckets(histogram.buckets(), histogram.total))]


def _tally(name: str) -> Callable[[Sources], Samples]:
    def samples(sources: Sources) -> Samples:
        value = getattr(sources.tallies, name)
        return _buckets(value) if isinstance(value, Histogram) else one(value)

    return samples


def _cache_config(sources: Sources) -> Samples:
    facts = sources.facts
    values = (
        facts.block_size,
        facts.num_kv_blocks,
        facts.max_model_len or 0,
        facts.max_num_seqs,
        facts.dtype,
    )
    return [(tuple(map(str, values)), 1)]


def _rejections(sources: Sources) -> Samples:
    usage = sources.traffic.usage
    counts = Counter({"unauthorized": usage.unauthorized})
    for _, used in usage.items():
        counts.update(used.refused)
    return labelled(dict(sorted(counts.items())))


def _key(name: str) -> Callable[[Sources], Samples]:
    return lambda sources: [((key,), getattr(used, name)) for key, used in sources.traffic.usage.items()]


def _key_rejections(sources: Sources) -> Samples:
    used = sources.traffic.usage.items()
    return [((key, code), count) for key, one in used for code, count in one.refused.items()]


def _queue(name: str) -> Callable[[Sources], Samples]:
    def samples(sources: Sources) -> Samples:
        queue = sources.traffic.admission
        return [] if queue is None else one(getattr(queue, name))

    return samples


def _states(sources: Sources) -> Samples:
    return [((state.value,), int(sources.client.state is state)) for state in EngineState]


def _of_engine(metric: Metric[EngineTotals]) -> Metric[Sources]:
    return Metric(
        metric.name, metric.kind, metric.help, lambda sources: metric.read(sources.engine), metric.labels
    )


METRICS: tuple[Metric[Sources], ...] = (
    *map(_of_engine, ENGINE_METRICS),
    Metric("cache_config_info", "gauge", "Always 1; the labels are the engine's options.",
           _cache_config, ("block_size", "num_kv_blocks", "max_model_len", "max_num_seqs", "dtype")),
    Metric("engine_state", "gauge", "1 for the current state of the engine.", _states, ("state",)),
    Metric("engine_restarts", "counter", "Restarts of the engine.", lambda sources: one(sources.client.restarts)),

    # Tokens and steps.
    Metric("prompt_tokens", "counter", "Prompt tokens of requests that have ended, computed or cached.",
           _tally("prompt_tokens")),
    Metric("prompt_tokens_cached", "counter", "Prompt tokens taken from the prefix cache.", _tally("cached_tokens")),
    Metric("generation_tokens", "counter", "Output tokens.", _tally("generation_tokens")),

    # Latencies as callers see them.
    Metric("time_to_first_token_seconds", "histogram", "Arrival of the HTTP request to its first output token.",
           _tally("ttft")),
    Metric("inter_token_latency_seconds", "histogram", "Time between two additions to a completion.", _tally("itl")),
    Metric("e2e_request_latency_seconds", "histogram",
           "Arrival of the HTTP request to the end of its answer, if the engine accepted it.", _tally("e2e")),

    # Latencies of each prompt, by the engine's clock.
    Metric("request_time_per_output_token_seconds", "histogram",
           "Mean time between the output tokens of a prompt's completions.", _tally("tpot")),
    Metric("request_queue_time_seconds", "histogram", "Arrival at the engine to the first scheduled step.",
           _tally("queue")),
    Metric("request_prefill_time_seconds", "histogram", "First scheduled step to the first output token.",
           _tally("prefill")),
    Metric("request_decode_time_seconds", "histogram", "First output token to the last.", _tally("decode")),
    Metric("request_inference_time_seconds", "histogram", "Prefill and decode together.", _tally("inference")),

    # Requests, and how they ended.
    Metric("request_success", "counter", "Completions that have ended, by finish reason.",
           lambda sources: labelled(sources.tallies.finished), ("finished_reason",)),
    Metric("request_prompt_tokens", "histogram", "Tokens of a prompt that were computed or cached.",
           _tally("prompt_length")),
    Metric("request_prefill_kv_computed_tokens", "histogram", "Tokens of a prompt that were not cached.",
           _tally("computed_length")),
    Metric("request_generation_tokens", "histogram", "Output tokens of a completion.", _tally("output_length")),
    Metric("request_max_num_generation_tokens", "histogram", "Output tokens of a prompt's longest completion.",
           _tally("longest_output")),
    Metric("request_params_n", "histogram", "The parameter n of requests.", _tally("n")),
    Metric("request_params_max_tokens", "histogram", "The parameter max_tokens of requests.", _tally("max_tokens")),

    # Traffic.
    Metric("http_requests", "counter", "HTTP requests that have ended.",
           lambda sources: list(sources.tallies.http.items()), ("route", "method", "status")),
    Metric("admission_rejections", "counter", "Requests refused before they ran, by error code.",
           _rejections, ("reason",)),
    Metric("queue_completions", "gauge", "Running and waiting completions, as counted for --max-queue.",
           _queue("completions")),
    Metric("queue_tokens", "gauge", "Tokens charged for them, as counted for --max-queue-tokens.", _queue("tokens")),
    Metric("queue_max_completions", "gauge", "--max-queue.", _queue("max_completions")),
    Metric("queue_max_tokens", "gauge", "--max-queue-tokens.", _queue("max_tokens")),
    Metric("key_requests", "counter", "Accepted requests, by the name of the key.", _key("requests"), ("key",)),
    Metric("key_prompt_tokens", "counter", "Prompt tokens, by the name of the key.", _key("prompt_tokens"), ("key",)),
    Metric("key_cached_tokens", "counter", "Cached prompt tokens, by the name of the key.",
           _key("cached_tokens"), ("key",)),
    Metric("key_generation_tokens", "counter", "Output tokens, by the name of the key.",
           _key("completion_tokens"), ("key",)),
    Metric("key_rejections", "counter", "Refused requests, by the name of the key and the error code.",
           _key_rejections, ("key", "reason")),

    # The server itself.
    Metric("event_loop_lag_seconds", "histogram", "Delay of the server's event loop, sampled in equal intervals.",
           lambda sources: _buckets(sources.lag.histogram)),
    Metric("log_lines_dropped", "counter", "Log lines that could not be written.",
           lambda sources: one(sources.dropped_log_lines())),
)  # fmt: skip
