"""`headrace bench report`: what each technique gains on this machine, as a page, Markdown and JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.cli.bench.kind import Flags, Kind, Prepared
from headrace.cli.engine_flags import DEFAULT_MODEL, engine_config
from headrace.cli.parser import needs_extra
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.model.latency import Progress
    from headrace.bench.report import Report, Row

MAX_JSON_BYTES = 64 << 20
FILES = ("report.html", "report.md", "report.json")
_DRAFTERS = {DEFAULT_MODEL: "tale-draft"}
"""What drafts unless --drafter names something: for other models n-grams."""
_STEPS = 60
"""About so many measurements: the progress bar's length."""


def _flags(parser: Flags) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("headrace-report"), metavar="FOLDER",
        help=f"where {', '.join(FILES)} and pictures go (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer sizes and shorter runs")
    parser.add_argument(
        "--drafter", metavar="NAME",
        help="what drafts, as --speculative takes it (default: tale-draft for tale, else ngram)",
    )  # fmt: skip
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="texts for the quality of formats (default: bundled stories)",
    )
    parser.add_argument(
        "--price-per-hour", type=float, metavar="PRICE",
        help="of this machine, in any currency: adds what a million tokens cost",
    )  # fmt: skip
    parser.add_argument(
        "--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"),
        help="measure nothing, and print how two report.json differ",
    )  # fmt: skip


def _ahead(args: argparse.Namespace) -> int | None:
    """Refuses bad input before the work; with --compare that is all of it."""
    if args.compare is not None:
        from headrace.bench.technique_report.compare import render

        print(render(*(_read(path) for path in args.compare)))
        return 0
    if args.price_per_hour is not None and not 0 < args.price_per_hour < 1e9:
        raise ConfigError(f"--price-per-hour must be above 0, got {args.price_per_hour:g}")
    with needs_extra("bench", "headrace bench report"):
        import matplotlib  # noqa: F401
    try:
        args.output.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (args.output / name).touch()
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {args.output}: {error.strerror}") from None
    return None


def _read(path: Path) -> Report:
    from headrace.bench.report import Report

    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ConfigError(f"{path} is too large for a report")
        found = Report.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ConfigError as error:  # of two files: which one
        raise ConfigError(f"{path}: {error}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is not JSON, so it is not a report") from None
    if found.kind != "report":
        raise ConfigError(
            f"{path} is a report of `headrace bench {found.kind}`: give one of `headrace bench report`"
        )
    return found


def _prepare(args: argparse.Namespace) -> Prepared:
    from headrace.bench.model.subject import load_subject
    from headrace.bench.technique_report.run import Options, notes, report_rows
    from headrace.build import survey
    from headrace.evaluation.documents import BUNDLED_TEXTS, read_records
    from headrace.sim.profile_store import this_profile

    texts = read_records(args.data or BUNDLED_TEXTS)
    config = engine_config(args)
    drafter = args.drafter or _DRAFTERS.get(config.model, "ngram")
    # A drafter that does not fit the model is refused now, not after minutes.
    survey(replace(config, speculative=drafter))
    subject = load_subject(config)
    resolved = subject.parts.resolved
    profile = None
    if resolved.kernels is not None:
        profile = this_profile(resolved.kernels, resolved.num_threads)
    options = Options(args.quick, drafter, texts, args.price_per_hour)

    def rows(progress: Progress) -> Iterator[Row]:
        return report_rows(config, subject, profile, options, progress)

    limits = subject.roofline
    return Prepared(
        rows, None if args.quick else _STEPS, subject.config(), limits,
        head=[subject.describe(), *([] if limits is None else [limits.describe()])],
        notes=notes(config, subject, profile),
    )  # fmt: skip


def _finish(args: argparse.Namespace, report: Report) -> None:
    from headrace.bench.technique_report.page import html, markdown

    html_file, markdown_file, json_file = (args.output / name for name in FILES)
    try:
        html_file.write_text(html(report), encoding="utf-8")
        markdown_file.write_text(markdown(report, args.output, ""), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {args.output}: {error.strerror}") from None
    report.write(str(json_file))
    print(f"written to {html_file}, {markdown_file.name} and {json_file.name}", file=sys.stderr)


def _tables(report: Report) -> str:
    from headrace.bench.technique_report.page import tables

    return tables(report)


REPORT_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "report": Kind(
            summary="one page: what each technique gains here",
            description="Serves one workload without a cache, with a contiguous one, batched, paged, with prefixes, "
            "fewer bits and drafts; measures batches, prompts, attention, prefix hits and quality; and writes one "
            "page with pictures, the same as Markdown, and JSON. Beside each speed stands what the cost model and the "
            "plain formula predict.",
            examples=(
                "",
                " --quick -o /tmp/report",
                " -m shape:tinyllama-1.1b --price-per-hour 0.40",
                " --compare before/report.json after/report.json",
            ),
            add_flags=_flags,
            prepare=_prepare,
            ahead=_ahead,
            finish=_finish,
            tables=_tables,
            options=("quick", "drafter", "price_per_hour"),
            takes_repeats=False,
            takes_plot=False,
        )
    }
)
