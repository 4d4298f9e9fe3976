"""Holds the cost model against measured steps: one profile, several models, formats, batches, prompts and rates.

    python -m benchmarks.foresight --num-threads 1
    python -m benchmarks.foresight --models tale --formats int4 --rates 40 --json rows.json

Takes the profile that `headrace calibrate` stored for these threads, and calibrates if there is none. On a machine that
other programs use too, --num-threads 1 measures in processor time, which leaves them out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.foresight.rates import rate_rows
from benchmarks.foresight.rows import Prediction, markdown, text
from benchmarks.foresight.steps import Closed, Subject
from headrace.bench.calibration.calibrate import calibrate
from headrace.bench.model.profile import tape_of
from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.quant.block_formats import named_format
from headrace.quant.format import BF16
from headrace.sim.cost import CostModel
from headrace.sim.profile import Profile
from headrace.sim.profile_store import read_profile, this_profile
from headrace.sim.work import model_work

MODELS = ("tale", "shape:smollm2-135m-32k", "shape:tinyllama-1.1b")
CHUNK, MOST_SEQUENCES = 512, 32


def main() -> None:
    args = _parser().parse_args()
    profile = _profile(args)
    rows: list[Prediction] = []
    try:
        for name in args.models:
            for format_name in args.formats:
                for row in _rows(name, format_name, profile, args):
                    rows.append(row)
                    if args.json:
                        made = json.dumps([one.to_json() for one in rows], indent=1)
                        Path(args.json).write_text(made + "\n", encoding="utf-8")
                    if args.markdown:
                        Path(args.markdown).write_text(markdown(rows), encoding="utf-8")
    except KeyboardInterrupt:
        print("interrupted: what was measured until then", file=sys.stderr)
    if rows:
        print(text(rows))


def _rows(name: str, format_name: str, profile: Profile, args: argparse.Namespace) -> Iterator[Prediction]:
    config = EngineConfig(
        model=name, dtype="bfloat16", quantization=None if format_name == "bf16" else format_name,
        num_threads=args.num_threads, max_num_seqs=MOST_SEQUENCES, max_num_batched_tokens=CHUNK,
        max_model_len=None if name == "tale" else max(args.prefill) + 8,
    )  # fmt: skip
    parts = assemble(config)
    tape = tape_of(parts.executor)
    if tape is None:
        raise SystemExit(f"{name} does not run on the native kernels here")
    subject = Subject(
        name, format_name, parts, tape, CostModel(model_work(parts.spec, parts.resolved), profile)
    )
    subject.run(1, 16, 2)  # warms up
    lengths = [length for length in args.prefill if length < parts.resolved.max_model_len]
    _say(f"{name} {format_name}: closed batches and prompts")
    closed = Closed(subject, args.batches, lengths)
    closed.measure()
    yield from closed.rows()
    if args.rates:
        yield from rate_rows(subject, args.rates, _say)


def _profile(args: argparse.Namespace) -> Profile:
    if args.profile is not None:
        return read_profile(Path(args.profile))
    stored = this_profile(threads=args.num_threads)
    if stored is not None:
        return stored
    formats = [BF16 if name == "bf16" else named_format(name) for name in args.formats]
    return calibrate(formats, threads=args.num_threads, progress=_say).profile


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(what, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--formats", nargs="+", default=["bf16", "int8", "int4"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--prefill", nargs="+", type=int, default=[128, 512, 1024, 4096])
    parser.add_argument(
        "--rates", type=int, default=0, help="requests at each of five rates (default: no rates)"
    )
    parser.add_argument("--num-threads", type=int, default=None)
    parser.add_argument("--profile", help="a file that `headrace calibrate --output` wrote")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--markdown", help="write them to this file as Markdown tables")
    return parser


if __name__ == "__main__":
    main()
