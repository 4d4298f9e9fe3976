"""`headrace calibrate`: measure this machine for the cost model, which plans and simulations use."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.parser import add_command, check_writable, typed
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.calibration.calibrate import Calibration
    from headrace.quant.format import WeightFormat

EXAMPLES = """\
examples:
  headrace calibrate                                   about two minutes; stores the profile
  headrace calibrate --quick                           half a minute, for a first impression
  headrace calibrate --formats bf16 int4 q4_k --num-threads 8
  headrace calibrate --output epyc.json --json         a file to take to another machine
"""
KV_TYPES = ("bf16", "int8", "f32")
MOST_THREADS = 4096
MOST_BUSY = 0.1
"""Share of the cores that other programs may take before the command warns."""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "calibrate", "[options]", examples=EXAMPLES,
        summary="measure this machine, for plans and simulations",
        description="Measure how long single ops take on this machine at a few sizes, and what the engine adds to a "
        "step. The profile is stored in the cache folder, for this CPU, these kernels, threads and formats; plans, "
        "simulations and time budgets use it. Sizes that no curve is made of are measured as well: the error on them "
        "is printed. Other programs disturb the measurement; run it on an idle machine.",
    )  # fmt: skip
    parser.add_argument(
        "--formats", nargs="+", metavar="FORMAT",
        help="formats of weights: f32, bf16, bf16-a32, f16, or as --quantization takes them (default: bf16 int8 int4; "
        "bf16-a32 instead of bf16 where bf16 checkpoints are computed in float32)",
    )  # fmt: skip
    parser.add_argument(
        "--kv-types", nargs="+", choices=KV_TYPES, default=["bf16", "int8"], metavar="TYPE",
        help=f"types of the KV cache, of {', '.join(KV_TYPES)} (default: bf16 int8)",
    )  # fmt: skip
    parser.add_argument("--kernels", metavar="NAME", help="instruction set (default: the best of this CPU)")
    parser.add_argument("--num-threads", type=int, metavar="N", help="CPU threads (default: all cores)")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and sizes: less exact")
    parser.add_argument("--output", metavar="PATH", help="write the profile to this file too")
    parser.add_argument("--json", action="store_true", help="print the profile and its checks as JSON")


def default_formats(kernels: str | None) -> list[str]:
    """What a bf16 checkpoint runs in here by default, and codes."""
    from headrace.plan.dtypes import dtype_info
    from headrace.plan.hardware import this_machine

    native = dtype_info(this_machine(), kernels).native
    return ["bf16" if "bfloat16" in native else "bf16-a32", "int8", "int4"]


def run(args: argparse.Namespace) -> int:
    from headrace.bench.calibration.calibrate import calibrate
    from headrace.bench.native.roofline import kernel_names
    from headrace.bench.progress import ProgressBar
    from headrace.sim.profile_store import check_store, store_profile

    here = kernel_names()
    if args.kernels is not None and args.kernels not in here:
        raise ConfigError(f"there are no kernels {args.kernels!r:.80} here: {', '.join(here) or 'none'}")
    if args.num_threads is not None and not 1 <= args.num_threads <= MOST_THREADS:
        raise ConfigError(f"--num-threads must be between 1 and {MOST_THREADS}, got {args.num_threads}")
    formats = _formats(args.formats or default_formats(args.kernels))
    if args.output:
        check_writable("the profile", args.output)
    check_store()
    with ProgressBar(None) as progress:
        found = calibrate(
            formats, args.kv_types, kernels=args.kernels, threads=args.num_threads, quick=args.quick,
            progress=progress,
        )  # fmt: skip
    path = store_profile(found.profile)
    if args.output:
        Path(args.output).write_text(json.dumps(found.profile.to_json(), indent=1) + "\n", encoding="utf-8")
    if args.json:
        checks = [
            {"kind": one.kind, "name": one.name, "measured_s": one.measured_s, "predicted_s": one.predicted_s}
            for one in found.checks
        ]
        print(json.dumps({"profile": found.profile.to_json(), "checks": checks}, indent=1))
        return 0
    print(_report(found), end="")
    if found.profile.busy > MOST_BUSY:
        print(
            f"warning: other programs took {found.profile.busy:.0%} of the cores meanwhile, so some times are too "
            "long: calibrate again on an idle machine",
            file=sys.stderr,
        )
    print(typed(f"stored in {path}"), file=sys.stderr)
    return 0


def _formats(names: list[str]) -> list[WeightFormat]:
    from headrace.quant.block_formats import named_format
    from headrace.quant.format import FLOAT_FORMATS

    found = [FLOAT_FORMATS[name] if name in FLOAT_FORMATS else named_format(name) for name in names]
    return list(dict.fromkeys(found))


def _report(found: Calibration) -> str:
    from headrace.plan.report import table
    from headrace.plan.units import format_bytes

    profile = found.profile
    memory = ", ".join(f"{rate / 1e9:.1f} GB/s of {format_bytes(int(size))}" for size, rate in profile.memory)
    peaks = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in profile.peaks.items())
    rows = [("held out", "measured", "predicted", "error")]
    for one in found.checks:
        rows.append(
            (
                f"{one.kind}: {one.name}",
                _time(one.measured_s),
                _time(one.predicted_s),
                f"{one.error:+.1%}",
            )
        )
    errors = ", ".join(f"{kind} {share:.1%}" for kind, share in profile.error.items())
    step, server = profile.step, profile.server
    return (
        f"{profile.key}\nmemory: {memory}\nproducts in GFLOP/s: {peaks}\n"
        f"engine: {_time(step.step_s)} a step, {_time(step.sequence_s)} a sequence; {_time(profile.call_s)} a call\n"
        f"server: {_time(server.first_token_s)} to the first token, {_time(server.request_s)} of a core a request, "
        f"{_time(server.token_s)} a token\n\n"
        f"{table(rows, right=frozenset({1, 2, 3}))}\n\n"
        f"median error on what was held out: {errors}; {found.seconds:.0f} s\n"
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
