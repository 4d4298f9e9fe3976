"""`headrace bench KIND`: how fast a model runs here, beside what this machine can do at most."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.cli.bench.kind import Kind
from headrace.cli.bench.model import MODEL_KINDS
from headrace.cli.bench.native import NATIVE_KINDS
from headrace.cli.bench.report import REPORT_KINDS
from headrace.cli.bench.serve import SERVE_KINDS
from headrace.cli.bench.simulator import SIMULATOR_KINDS
from headrace.cli.engine_flags import add_engine_flags, add_model_flag
from headrace.cli.parser import add_command, check_writable

if TYPE_CHECKING:
    from headrace.bench.report import Row

EXAMPLES = """\
examples:
  headrace bench latency
  headrace bench throughput -m shape:tinyllama-1.1b --quantization int4 --json result.json
  headrace bench profile --help
"""
KINDS = {**MODEL_KINDS, **NATIVE_KINDS, **SERVE_KINDS, **REPORT_KINDS, **SIMULATOR_KINDS}
INTERRUPTED = 130


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "bench", "KIND ...", summary="measure speed, start-up, kernels", examples=EXAMPLES,
        description="Measure this machine. Prompts are random token ids from a seed; every request is greedy and "
        "runs to its full length, so that two runs do the same work. Each figure stands beside its roofline: the "
        "memory bandwidth and the peak of the matrix units, measured in the same minute. Ctrl-C ends a run and "
        "prints what was measured until then.",
    )  # fmt: skip
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True, prog=parser.prog)
    for name, kind in KINDS.items():
        added = add_command(
            kinds, name, "[options]", summary=kind.summary, description=kind.description,
            examples="examples:\n" + "".join(f"  headrace bench {name}{rest}\n" for rest in kind.examples),
        )  # fmt: skip
        kind.add_flags(added)
        if kind.takes_repeats:
            added.add_argument(
                "--repeats", type=int, default=kind.repeats, metavar="N",
                help="measured runs, medians are shown (default: %(default)s)",
            )  # fmt: skip
        added.add_argument(
            "--json", metavar="PATH", help="write the result to this file, - for standard output"
        )
        if kind.takes_plot:
            added.add_argument("--plot", metavar="PATH", help="draw the result (needs the bench extra)")
        if kind.takes_model:
            add_model_flag(added)
            add_engine_flags(added)


def run(args: argparse.Namespace) -> int:
    from headrace.bench.plot import check_plot, plot_report
    from headrace.bench.progress import ProgressBar
    from headrace.bench.report import make_report

    kind = KINDS[args.kind]
    kind.check(args)
    status = None if kind.ahead is None else kind.ahead(args)
    if status is not None:
        return status
    plot = args.plot if kind.takes_plot else None
    if args.json and args.json != "-":
        check_writable("the result", args.json)
    if plot:
        check_plot(plot)
        check_writable("the plot", plot)
    rows: list[Row] = []
    prepared = kind.prepare(args)
    complete = True
    with ProgressBar(prepared.runs) as progress:
        try:
            rows.extend(prepared.rows(progress))
        except KeyboardInterrupt:
            complete = False
    report = make_report(
        args.kind, rows,
        config={**prepared.config, **_options(args, kind)},
        roofline=None if prepared.roofline is None else prepared.roofline.to_json(),
        complete=complete,
        notes=prepared.notes,
    )  # fmt: skip
    if args.json != "-":
        print(f"{report.machine.describe()}")
        print(*prepared.head, sep="\n")
        if kind.more_columns:
            first = replace(report, notes=(), complete=True)
            print(f"\n{first.table(kind.columns, title=False)}")
        text = (
            kind.tables(report)
            if kind.tables
            else report.table(kind.more_columns or kind.columns, title=False)
        )
        print(f"\n{text}")
    if args.json:
        report.write(args.json)
    if kind.finish is not None:
        kind.finish(args, report)
    if plot and rows:
        plot_report(report, plot)
        print(f"drawn to {plot}", file=sys.stderr)
    return 0 if complete else INTERRUPTED


def _options(args: argparse.Namespace, kind: Kind) -> dict[str, object]:
    return {name: getattr(args, name) for name in kind.kept}
