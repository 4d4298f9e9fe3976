"""Ways to serve one workload: engine settings, each adding one technique to the previous one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.bench.measure import Measured, percentile, run_workload
from headrace.bench.workload import Arrival
from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.plan.report import table
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.units import format_bytes, milliseconds

MAX_MODEL_LEN = 512
BATCH = 8
"""Sequences that a static batch takes, and how many contiguous caches the common KV memory holds."""

MAX_NUM_SEQS = 32


@dataclass(frozen=True, slots=True)
class Baseline:
    """A name for the table, what it changes against the one before, and the engine options that make it.

    `share` of the requests are served, the first ones; all of them would take too long one at a time.
    """

    name: str
    change: str
    options: dict[str, object]
    share: float = 1.0


def _baselines() -> tuple[Baseline, ...]:
    """Each takes the options of the one before it and changes those of one technique."""
    options: dict[str, object] = {
        "max_model_len": MAX_MODEL_LEN, "kv_layout": "contiguous", "kv_cache": False, "max_num_seqs": 1,
        "batching": "static", "batch_size": 1, "enable_prefix_caching": False,
    }  # fmt: skip
    steps: tuple[tuple[str, str, dict[str, object], float], ...] = (
        ("no KV cache", "one request at a time; every step computes all of its tokens again", {}, 1 / 32),
        ("KV cache", "keys and values are stored: a step computes one token", {"kv_cache": True}, 1 / 4),
        (
            "static batching",
            f"{BATCH} requests at a time; the next {BATCH} start when the longest has ended",
            {"max_num_seqs": BATCH, "batch_size": BATCH}, 1.0,
        ),
        (
            "continuous batching",
            "a request starts when another one ends",
            {"batching": "continuous", "batch_size": None}, 1.0,
        ),
        (
            "paged KV cache",
            "memory in blocks as requests grow, not for the longest: more requests fit",
            {"kv_layout": "paged", "max_num_seqs": MAX_NUM_SEQS}, 1.0,
        ),
        (
            "prefix caching",
            "the system prompt is computed once",
            {"enable_prefix_caching": True}, 1.0,
        ),
        ("priorities", "urgent requests, one in ten, are scheduled first", {"scheduling_policy": "priority"}, 1.0),
    )  # fmt: skip
    made = []
    for title, change, more, share in steps:
        options = options | more
        given = {name: value for name, value in options.items() if value is not None}
        made.append(Baseline(title, change, given, share))
    return tuple(made)


BASELINES = _baselines()


@dataclass(frozen=True, slots=True)
class Row:
    """One baseline's measurement, how many requests it served, and the bytes of one token place."""

    baseline: Baseline
    measured: Measured
    arrivals: Sequence[Arrival]
    token_bytes: int

    def ttft_s(self, urgent: bool) -> list[float]:
        """Times to the first token of the requests that are urgent, or of those that are not."""
        found = self.measured.ttft_by_request
        return [
            found[each.request.request_id] for each in self.arrivals if (each.request.priority < 0) is urgent
        ]


def served(baseline: Baseline, arrivals: Sequence[Arrival]) -> Sequence[Arrival]:
    """The requests that a baseline serves. Those that run one at a time are all there from the start."""
    some = arrivals[: max(1, round(len(arrivals) * baseline.share))]
    return some if baseline.share == 1.0 else [replace(each, at_s=0.0) for each in some]


def compare(
    model: str,
    arrivals: Sequence[Arrival],
    kv_cache_memory: int,
    on_start: Callable[[str], Callable[[int], None] | None],
    **options: object,
) -> list[Row]:
    """Run the workload under every baseline with the same KV memory in bytes.

    `on_start` is called with each baseline's name and may return a callback for output tokens.
    """
    rows = []
    for baseline in BASELINES:
        chosen = {**options, **baseline.options, "kv_cache_memory": kv_cache_memory}
        parts = assemble(EngineConfig.from_kwargs(model=model, **chosen))
        some = served(baseline, arrivals)
        measured = run_workload(parts.engine, parts.executor, some, on_start(baseline.name))
        rows.append(Row(baseline, measured, some, kv_token_bytes(parts.resolved)))
    return rows


def kv_token_bytes(resolved: ResolvedConfig) -> int:
    """Bytes of KV that one token place takes, averaged over the KV groups."""
    return resolved.kv_cache_memory // sum(
        group.num_blocks * group.block_size for group in resolved.kv_groups if not group.is_state
    )


HEAD = (
    "", "tok/s", "ratio", "TTFT p50", "TTFT p99", "urgent p50", "batch", "KV used", "wasted", "prefix hits",
)  # fmt: skip


def render(rows: Sequence[Row]) -> str:
    """The comparison as one aligned table, then what each row changed.

    `ratio` is to the row before, in tok/s; `urgent p50` the TTFT of the urgent requests. Memory and batch are means
    over the run; `wasted` is the share of the reserved KV memory that held nothing. There is no TTFT where only some
    of the requests were served: it is the time that they waited for one another.
    """
    cells = [_cells(row, before) for row, before in zip(rows, [None, *rows], strict=False)]
    width = max(len(row.baseline.name) for row in rows)
    changes = [f"  {row.baseline.name:{width}}  {row.baseline.change}{_some(row)}" for row in rows]
    return "\n".join([table([HEAD, *cells], right=frozenset(range(1, len(HEAD)))), "", *changes])


def _some(row: Row) -> str:
    return "" if row.baseline.share == 1.0 else f" (the first {row.measured.requests} requests)"


def _cells(row: Row, before: Row | None) -> tuple[str, ...]:
    run = row.measured
    return (
        row.baseline.name,
        f"{run.output_rate:.0f}",
        "" if before is None else f"{run.output_rate / before.measured.output_rate:.2f} x",
        *_ttft_cells(row),
        f"{run.mean_batch:.1f}",
        *_kv_cells(run.kv_reserved * row.token_bytes, run.kv_used * row.token_bytes),
        f"{run.hit_rate:.0%}",
    )


def _ttft_cells(row: Row) -> tuple[str, str, str]:
    if row.baseline.share != 1.0:
        return ("-", "-", "-")
    times = row.measured.ttft_s
    return (
        milliseconds(percentile(times, 0.5)),
        milliseconds(percentile(times, 0.99)),
        milliseconds(percentile(row.ttft_s(urgent=True), 0.5)),
    )


def _kv_cells(reserved: float, used: float) -> tuple[str, str]:
    if not used:  # nothing outlives a step where everything is computed again
        return ("-", "-")
    return (format_bytes(int(used)), f"{1 - used / reserved:.0%}")
