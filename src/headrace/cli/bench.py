"""`headrace bench latency | throughput`: how fast a model runs here."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.bench.measure import Measured, milliseconds, percentile, run_workload
from headrace.bench.workload import fixed_lengths, mixed_lengths
from headrace.cli.engine_flags import add_engine_flags, add_model_flag, engine_config
from headrace.errors import ConfigError
from headrace.llm import EngineParts, assemble
from headrace.ops.cpu_features import detect
from headrace.plan.report import table

EXAMPLES = """\
examples:
  headrace bench latency
  headrace bench latency -m shape:smollm2-135m --batch-sizes 1 8 --input-len 128 --output-len 32
  headrace bench throughput --num-prompts 64 --json result.json
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench", help="measure latency or throughput", epilog=EXAMPLES,
        description="Measure this machine. Prompts are random token ids from a seed; every request is greedy and "
        "runs to its full length, so that two runs do the same work.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    latency = kinds.add_parser("latency", help="TTFT, TPOT and decode speed for batches of one size")
    latency.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32], metavar="B")
    latency.add_argument(
        "--input-len", type=int, default=128, metavar="N", help="prompt tokens (default: 128)"
    )
    latency.add_argument(
        "--output-len", type=int, default=32, metavar="N", help="output tokens (default: 32)"
    )
    throughput = kinds.add_parser("throughput", help="tokens a second for many requests of mixed lengths")
    throughput.add_argument("--num-prompts", type=int, default=64, metavar="N", help="requests (default: 64)")
    throughput.add_argument("--input-len", type=int, nargs=2, default=[32, 256], metavar=("LOW", "HIGH"))
    throughput.add_argument("--output-len", type=int, nargs=2, default=[16, 64], metavar=("LOW", "HIGH"))
    for kind in (latency, throughput):
        kind.add_argument("--repeats", type=int, default=3, metavar="N", help="measured runs (default: 3)")
        kind.add_argument(
            "--json", metavar="PATH", help="also write the numbers to this file, - for standard output"
        )
        add_model_flag(kind)
        add_engine_flags(kind)


def run(args: argparse.Namespace) -> int:
    _check(args)
    parts = assemble(engine_config(args))
    results = _latency(args, parts) if args.kind == "latency" else _throughput(args, parts)
    machine = detect().brand or "unknown CPU"
    resolved = parts.resolved
    if args.json != "-":
        print(f"{args.model}, {resolved.dtype}, {resolved.num_threads} threads on {machine}")
        print(f"medians of {args.repeats} runs\n")
        print(_table(results))
    if args.json:
        _write_json(
            args.json, {"model": args.model, "machine": machine, "dtype": resolved.dtype, "runs": results}
        )
    return 0


def _check(args: argparse.Namespace) -> None:
    numbers = {"repeats": args.repeats, "num-prompts": getattr(args, "num_prompts", 1)}
    for name in ("input_len", "output_len", "batch_sizes"):
        value = getattr(args, name, 1)
        numbers |= {name.replace("_", "-"): min(value) if isinstance(value, list) else value}
    for name, value in numbers.items():
        if value < 1:
            raise ConfigError(f"--{name} must be at least 1, got {value}")
    if args.kind == "throughput":
        for name in ("input_len", "output_len"):
            low, high = getattr(args, name)
            if low > high:
                raise ConfigError(
                    f"--{name.replace('_', '-')} takes the lower length first, got {low} {high}"
                )


def _latency(args: argparse.Namespace, parts: EngineParts) -> list[dict[str, object]]:
    results = []
    for size in args.batch_sizes:
        runs = []
        for repeat in range(args.repeats + 1):  # the first run warms up and is not counted
            arrivals = fixed_lengths(
                size, prompt_tokens=args.input_len, output_tokens=args.output_len,
                vocab_size=parts.spec.vocab_size, seed=repeat,
            )  # fmt: skip
            runs.append(run_workload(parts.engine, parts.executor, arrivals))
            _progress(f"batch {size}", repeat, args.repeats)
        results.append(_medians(f"batch {size}", runs[1:]))
    return results


def _throughput(args: argparse.Namespace, parts: EngineParts) -> list[dict[str, object]]:
    runs = []
    for repeat in range(args.repeats + 1):
        arrivals = mixed_lengths(
            args.num_prompts, prompt_tokens=tuple(args.input_len), output_tokens=tuple(args.output_len),
            vocab_size=parts.spec.vocab_size, seed=repeat,
        )  # fmt: skip
        runs.append(run_workload(parts.engine, parts.executor, arrivals))
        _progress("throughput", repeat, args.repeats)
    return [_medians(f"{args.num_prompts} requests", runs[1:])]


def _progress(name: str, repeat: int, repeats: int) -> None:
    if sys.stderr.isatty():
        what = "warmed up" if repeat == 0 else f"run {repeat} of {repeats}"
        print(f"\r{name}: {what}   ", end="" if repeat < repeats else "\n", file=sys.stderr, flush=True)


def _medians(name: str, runs: Sequence[Measured]) -> dict[str, object]:
    def middle(values: Sequence[float]) -> float:
        return statistics.median(values)

    return {
        "name": name,
        "ttft_p50_s": middle([percentile(run.ttft_s, 0.5) for run in runs]),
        "ttft_p99_s": middle([percentile(run.ttft_s, 0.99) for run in runs]),
        "tpot_p50_s": middle([percentile(run.tpot_s, 0.5) for run in runs]),
        "output_tokens_per_s": middle([run.output_rate for run in runs]),
        "total_tokens_per_s": middle([run.total_rate for run in runs]),
        "mean_batch": middle([run.mean_batch for run in runs]),
        "runs": [asdict(run) for run in runs],
    }


HEAD = ("", "TTFT p50", "TTFT p99", "TPOT p50", "output tok/s", "all tok/s", "batch")


def _table(results: Sequence[dict[str, Any]]) -> str:
    rows = [
        (
            result["name"],
            milliseconds(result["ttft_p50_s"]),
            milliseconds(result["ttft_p99_s"]),
            milliseconds(result["tpot_p50_s"]),
            f"{result['output_tokens_per_s']:.0f}",
            f"{result['total_tokens_per_s']:.0f}",
            f"{result['mean_batch']:.1f}",
        )
        for result in results
    ]
    return table([HEAD, *rows], right=frozenset(range(1, len(HEAD))))


def _write_json(path: str, data: dict[str, object]) -> None:
    text = json.dumps(data, indent=2)
    if path == "-":
        print(text)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the result cannot be written to {path}: {error.strerror}") from None
