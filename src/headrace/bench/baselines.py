"""Five ways to serve one workload: settings of the one engine, each adding one technique to the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.bench.measure import Measured, percentile, run_workload
from headrace.bench.workload import Arrival
from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.plan.report import table
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.units import format_bytes, milliseconds

MAX_MODEL_LEN = 512
BATCH = 8
"""Sequences that a fixed batch takes, and how many contiguous caches the common KV memory holds."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A name for the table, and the engine options that make it."""

    name: str
    options: dict[str, object]


_COMMON: dict[str, object] = {"max_model_len": MAX_MODEL_LEN, "enable_prefix_caching": False}
_PAGED = {**_COMMON, "max_num_seqs": 32}

BASELINES = (
    Baseline("no KV cache", {**_COMMON, "kv_cache": False, "batching": "static", "batch_size": BATCH}),
    Baseline(
        "contiguous + static",
        {
            **_COMMON,
            "kv_layout": "contiguous",
            "batching": "static",
            "batch_size": BATCH,
            "max_num_seqs": BATCH,
        },
    ),
    Baseline("paged + dynamic", {**_PAGED, "batching": "dynamic", "batch_size": 32, "batch_wait_s": 0.2}),
    Baseline("paged + continuous", {**_PAGED, "batching": "continuous"}),
    Baseline("+ prefix caching", {**_PAGED, "batching": "continuous", "enable_prefix_caching": True}),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One baseline's measurement, and the bytes of one token place."""

    name: str
    measured: Measured
    token_bytes: int


def compare(
    model: str,
    arrivals: Sequence[Arrival],
    kv_cache_memory: int,
    on_start: Callable[[str], Callable[[int], None] | None],
    **options: object,
) -> list[Row]:
    """Run the workload under every baseline with the same KV memory in bytes.

    `on_start` is told each baseline's name and may return a callback for output tokens.
    """
    rows = []
    for baseline in BASELINES:
        chosen = {**options, **baseline.options, "kv_cache_memory": kv_cache_memory}
        parts = assemble(EngineConfig.from_kwargs(model=model, **chosen))
        measured = run_workload(parts.engine, parts.executor, arrivals, on_start(baseline.name))
        rows.append(Row(baseline.name, measured, kv_token_bytes(parts.resolved)))
    return rows


def kv_token_bytes(resolved: ResolvedConfig) -> int:
    """Bytes of KV that one token place takes, averaged over the KV groups."""
    return resolved.kv_cache_memory // sum(
        group.num_blocks * group.block_size for group in resolved.kv_groups
    )


HEAD = (
    "", "tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "batch", "KV reserved", "KV used", "wasted", "prefix hits",
)  # fmt: skip


def render(rows: Sequence[Row]) -> str:
    """The comparison as one aligned table. Memory and batch are means over the run; "wasted" is the share of the
    reserved KV memory that held nothing."""
    cells = [_cells(row) for row in rows]
    return table([HEAD, *cells], right=frozenset(range(1, len(HEAD))))


def _cells(row: Row) -> tuple[str, ...]:
    run = row.measured
    return (
        row.name,
        f"{run.output_rate:.0f}",
        milliseconds(percentile(run.ttft_s, 0.5)),
        milliseconds(percentile(run.ttft_s, 0.99)),
        milliseconds(percentile(run.tpot_s, 0.5)),
        f"{run.mean_batch:.1f}",
        *_kv_cells(run.kv_reserved * row.token_bytes, run.kv_used * row.token_bytes),
        f"{run.hit_rate:.0%}",
    )


def _kv_cells(reserved: float, used: float) -> tuple[str, str, str]:
    if not used:  # nothing outlives a step where everything is computed again
        return ("-", "-", "-")
    return (format_bytes(int(reserved)), format_bytes(int(used)), f"{1 - used / reserved:.0%}")
