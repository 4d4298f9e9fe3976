"""Every figure that a benchmark may report: its name in JSON, heading, unit, meaning and format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.plan.units import format_bytes


@dataclass(frozen=True, slots=True)
class Metric:
    """`unit` is the unit in JSON; `show` writes a value for the table."""

    heading: str
    unit: str
    meaning: str
    show: Callable[[float], str]


def show_seconds(seconds: float) -> str:
    """Three digits in the largest unit that fits: 1.23 s, 45.6 ms, 789 µs."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * scale >= 1 or unit == "µs":
            return f"{_digits(seconds * scale)} {unit}"
    raise AssertionError("the last unit takes everything")


def _digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _rate(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _times(value: float) -> str:
    return f"{value:.2f} x"


def _signed(value: float) -> str:
    return f"{value:+.2%}"


def _share(value: float) -> str:
    return f"{value:.2%}"


def _giga(value: float) -> str:
    return _rate(value / 1e9)


def _bytes(value: float) -> str:
    return format_bytes(round(value))


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _fine(value: float) -> str:
    return f"{value:.4f}"


def _plain(value: float) -> str:
    return f"{value:.4g}"


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "checkpoint_bytes": Metric("size", "bytes", "all weights in the files", _bytes),
        "bits_per_weight": Metric(
            "bits", "bits", "of a weight of the matrices in layers, scales, zeros and floats included", _ratio
        ),
        "decode_1_tokens_per_s": Metric("tok/s, B=1", "tokens/s", "decoding of one request", _rate),
        "decode_32_tokens_per_s": Metric("tok/s, B=32", "tokens/s", "decoding of 32 requests at once", _rate),
        "sent": Metric("sent", "requests", "requests sent; each was answered, refused or failed", _count),
        "answered": Metric("answered", "requests", "requests with a complete answer", _count),
        "refused": Metric("429", "requests", "requests that the server refused with 429", _count),
        "failed": Metric("failed", "requests", "requests that ended in any other way", _count),
        "requests_per_s": Metric("req/s", "requests/s", "answered requests over the whole time", _rate),
        "goodput_per_s": Metric(
            "goodput/s", "requests/s", "requests that met the SLO over the whole time", _rate
        ),
        "within_slo": Metric("within SLO", "fraction", "requests that met the SLO, of those sent", _percent),
        "prompt_tokens": Metric("prompt tokens", "tokens", "prompt tokens of answered requests", _count),
        "output_tokens": Metric("output tokens", "tokens", "output tokens of answered requests", _count),
        "prefill_tokens_per_s": Metric(
            "prefill tok/s", "tokens/s", "prompt tokens over the time until the last first token", _rate
        ),
        "decode_tokens_per_s": Metric(
            "decode tok/s",
            "tokens/s",
            "tokens emitted after every sequence had its first one, over that time",
            _rate,
        ),
        "output_tokens_per_s": Metric("output tok/s", "tokens/s", "output tokens over the whole time", _rate),
        "total_tokens_per_s": Metric(
            "all tok/s", "tokens/s", "prompt and output tokens over the whole time", _rate
        ),
        "ttft_p50_s": Metric("TTFT p50", "s", "arrival to first token, median over requests", show_seconds),
        "ttft_p90_s": Metric("TTFT p90", "s", "arrival to first token, 90th percentile", show_seconds),
        "ttft_p99_s": Metric("TTFT p99", "s", "arrival to first token, 99th percentile", show_seconds),
        "tpot_p50_s": Metric("TPOT p50", "s", "mean gap between a request's tokens, median", show_seconds),
        "tpot_p90_s": Metric("TPOT p90", "s", "mean gap between a request's tokens, p90", show_seconds),
        "tpot_p99_s": Metric("TPOT p99", "s", "mean gap between a request's tokens, p99", show_seconds),
        "itl_p50_s": Metric("ITL p50", "s", "gap between two tokens of a request, median", show_seconds),
        "itl_p90_s": Metric("ITL p90", "s", "gap between two tokens of a request, p90", show_seconds),
        "itl_p99_s": Metric("ITL p99", "s", "gap between two tokens of a request, p99", show_seconds),
        "e2e_p50_s": Metric("E2E p50", "s", "arrival to last token, median over requests", show_seconds),
        "e2e_p90_s": Metric("E2E p90", "s", "arrival to last token, 90th percentile", show_seconds),
        "e2e_p99_s": Metric("E2E p99", "s", "arrival to last token, 99th percentile", show_seconds),
        "late_p99_s": Metric("late p99", "s", "sent later than planned, 99th percentile", show_seconds),
        "client_share": Metric(
            "client CPU", "fraction", "CPU time of the client over the whole time", _percent
        ),
        "wall_s": Metric("wall", "s", "first arrival to last token", show_seconds),
        "simulated_s": Metric("simulated", "s", "simulated time", show_seconds),
        "cpu_s": Metric("CPU", "s", "CPU time of the process", show_seconds),
        "times_real": Metric("x real time", "x", "simulated time over CPU time", _rate),
        "steps_per_s": Metric("steps/s", "steps/s", "simulated steps over CPU time", _rate),
        "simulated_per_s": Metric("requests/CPU s", "requests/s", "simulated requests over CPU time", _rate),
        "speedup": Metric(
            "speed-up", "x", "over the runs without drafts before and after, median of all turns", _ratio
        ),
        "predicted_speedup": Metric(
            "predicted", "x", "what tokens a step and the measured costs of steps and drafting give", _ratio
        ),
        "acceptance": Metric("accepted", "fraction", "drafted tokens that were right", _percent),
        "draft_length": Metric("draft", "tokens", "drafted tokens of a sequence in a step, mean", _rate),
        "tokens_per_slice": Metric("tok/step", "tokens", "tokens that a step gives a sequence, mean", _ratio),
        "expected_per_slice": Metric(
            "expected",
            "tokens",
            "tokens a step that the set acceptance rate and the length of drafts give",
            _ratio,
        ),
        "startup_s": Metric("to first token", "s", "launch of the process to its first token", show_seconds),
        "launch_s": Metric("launch", "s", "launch to the first line of Headrace's code", show_seconds),
        "import_s": Metric("imports", "s", "importing the package", show_seconds),
        "config_s": Metric("config", "s", "reading the config and resolving the options", show_seconds),
        "load_s": Metric("load", "s", "reading and packing weights, making the KV cache", show_seconds),
        "first_token_s": Metric("first token", "s", "request to first token", show_seconds),
        "exit_s": Metric("exit", "s", "first token to the end of the process", show_seconds),
        "peak_rss_bytes": Metric("peak RSS", "bytes", "peak resident memory", _bytes),
        "mean_batch": Metric("batch", "sequences", "sequences in a step, mean", _rate),
        "calls": Metric("calls", "calls", "calls in a step", _count),
        "seconds": Metric("time", "s", "time of one call or one step", show_seconds),
        "share": Metric("share", "fraction", "part of the whole step's time", _percent),
        "overhead_s": Metric("overhead", "s", "time of a step outside the model's forward", show_seconds),
        "bytes": Metric("bytes", "bytes", "bytes that have to be read from or written to memory", _bytes),
        "operations": Metric("GFLOP", "operations", "multiplications and additions", _giga),
        "bytes_per_s": Metric("GB/s", "bytes/s", "bytes over time", _giga),
        "operations_per_s": Metric("GFLOP/s", "operations/s", "operations over time", _giga),
        "limit_s": Metric("roofline time", "s", "roofline lower bound of the time", show_seconds),
        "limit_tokens_per_s": Metric("roofline tok/s", "tokens/s", "roofline upper bound of the rate", _rate),
        "fraction": Metric("of roofline", "fraction", "roofline time over measured time", _percent),
        "ratio": Metric("ratio", "ratio", "rate over the rate of the comparison", _plain),
        "perplexity": Metric("perplexity", "perplexity", "exp of the mean loss a token", _fine),
        "perplexity_increase": Metric(
            "perplexity +", "fraction", "perplexity over that of the reference, less one", _signed
        ),
        "increase_error": Metric("±", "fraction", "standard error of the perplexity's increase", _share),
        "kl": Metric("KL", "nats", "KL divergence from the reference, mean over tokens", _plain),
        "top_1": Metric("same top token", "fraction", "positions with the same likeliest token", _share),
        "kept": Metric("kept", "fraction", "tokens of a prompt that a KV head keeps", _share),
        "evicted_tokens": Metric("evicted", "tokens", "tokens that sequences have given up", _count),
        "needle_recall": Metric(
            "needles", "fraction", "rare words of a text's beginning that are predicted right", _share
        ),
        "needle_probability": Metric("probability", "fraction", "of these words, geometric mean", _share),
        "guessed_recall": Metric("guessed", "fraction", "the same without the beginning", _share),
        "gain": Metric("gain", "x", "speed over the speed of the comparison", _times),
        "same_answers": Metric(
            "same answers", "fraction", "requests with the tokens of the comparison", _percent
        ),
        "predicted_tokens_per_s": Metric(
            "predicted tok/s", "tokens/s", "what the cost model gives for the same steps", _rate
        ),
        "formula_tokens_per_s": Metric(
            "formula tok/s", "tokens/s", "what the plain roofline gives for the same steps", _rate
        ),
        "kv_bytes": Metric("KV used", "bytes", "keys and values that requests held, mean", _bytes),
        "weight_bytes": Metric("weights", "bytes", "weights in memory", _bytes),
        "peak_bytes": Metric("peak memory", "bytes", "what the process grew by", _bytes),
        "token_bytes": Metric("a token", "bytes", "keys and values of one token", _bytes),
        "kv_4k_bytes": Metric("4,096 tokens", "bytes", "keys and values of so many tokens", _bytes),
        "kv_32k_bytes": Metric("32,768 tokens", "bytes", "keys and values of so many tokens", _bytes),
        "kv_128k_bytes": Metric("131,072 tokens", "bytes", "keys and values of so many tokens", _bytes),
        "itl_most_s": Metric("longest gap", "s", "the longest gap between two tokens", show_seconds),
        "cost_per_million": Metric(
            "cost a million", "currency", "a million output tokens at the price of the machine", _ratio
        ),
        "cost_per_hour": Metric("cost an hour", "currency", "of all machines", _ratio),
        "cost_per_million_output": Metric(
            "1M output",
            "currency",
            "a million output tokens: the part of the cost that decoding takes",
            _ratio,
        ),
        "cost_per_million_input": Metric(
            "1M input", "currency", "a million prompt tokens: the part of the cost that prompts take", _ratio
        ),
        "requests_per_day": Metric("requests a day", "requests", "at this rate, all day", _rate),
        "relative_error": Metric("error", "ratio", "distance from the reference over its norm", _plain),
    }
)
"""In the order of the table's columns."""
