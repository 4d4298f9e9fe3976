"""The command: `python -m benchmarks.peers [setup | models | run | report]`; without a word, all four in turn."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.files import make_file, missing_files
from benchmarks.peers.install import InstallError, install
from benchmarks.peers.models import MODELS, config_of, is_written, write_folder
from benchmarks.peers.page import PAGE, PLOT, RECORD, write_page
from benchmarks.peers.peers import (
    BY_NAME,
    ENGINES,
    FORMATS,
    GGUF_WRITER,
    HEADRACE,
    PEERS,
    Peer,
    cpu_vendor,
    fits,
)
from benchmarks.peers.plan import Rounds
from benchmarks.peers.plot import draw
from benchmarks.peers.readme import write_into
from benchmarks.peers.record import Record
from benchmarks.peers.run import Settings, run
from benchmarks.peers.work_items import COLUMNS, Sizes
from benchmarks.peers.workplace import DEFAULT, ROOT, Workplace

QUICK = Sizes(prefill=64, prompt=16, outputs=4, mixed_requests=4, mixed_prompts=(8, 64), mixed_outputs=(2, 8))

_EXAMPLES = """examples:
  python -m benchmarks.peers                          set up, make the models, measure, write docs/results.md
  python -m benchmarks.peers setup --only openvino    install one peer
  python -m benchmarks.peers run --quick --peers headrace openvino --out DIR   a few tokens, one round
  python -m benchmarks.peers report --out DIR         write the page again from what was measured"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # engines are ended as after Ctrl-C
    workplace = Workplace(options.work.resolve())
    steps = [options.step] if options.step != "all" else ["setup", "models", "run", "report"]
    try:
        done = all(_STEPS[step](options, workplace) for step in steps)
    except KeyboardInterrupt:
        _say("interrupted; the same command continues from here")
        return 130
    return 0 if done else 1


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _setup(options: argparse.Namespace, workplace: Workplace) -> bool:
    """Install the selected peers and the package that writes their files. True if at least one peer is installed."""
    wanted = [peer for peer in PEERS if not options.only or peer.name in options.only]
    wanted = [peer for peer in wanted if peer.own and fits(peer, cpu_vendor())]
    failed = []
    for peer in (GGUF_WRITER, *sorted(wanted, key=lambda peer: peer.base is not None)):
        try:
            done = install(peer, workplace, _say)
            _say(f"{peer.name}: {'installed' if done else 'installed before'}")
        except (InstallError, OSError, subprocess.CalledProcessError) as error:
            failed.append(peer.name)
            _say(f"{peer.name}: FAILED: {error}")
    return not wanted or any(peer.name not in failed for peer in wanted)


def _models(options: argparse.Namespace, workplace: Workplace) -> bool:
    """Every model's folder, and the files that engines load instead of it."""
    for name in options.models:
        folder, config = workplace.model(name), config_of(MODELS[name])
        if is_written(folder, config):
            _say(f"{name}: written before")
        else:
            _say(f"{name}: writing {folder}")
            write_folder(folder, config)
        for peer, format_, file in missing_files(PEERS, name, workplace):
            _say(f"{file.name}: writing")
            if not make_file(peer, name, format_, workplace):
                _say(f"{file.name}: FAILED; engines that load it will be missing")
    return True


def _run(options: argparse.Namespace, workplace: Workplace) -> bool:
    engines: list[Peer] = [peer for peer in ENGINES if not options.peers or peer.name in options.peers]
    settings = Settings(
        models=tuple(options.models),
        columns=tuple(options.columns),
        formats=tuple(options.formats),
        threads=options.threads,
        rounds=Rounds(1, 1) if options.quick else Rounds(),
        limit_s=options.limit,
        minutes=options.minutes,
        skipped=_skipped(options.skip),
        sizes=QUICK if options.quick else Sizes(),
    )
    try:
        record = run(engines, settings, workplace, _out(options, workplace), _say)
    except ValueError as error:
        _say(str(error))
        return False
    for (model, format_, engine, column), reason in record.reasons().items():
        _say(f"missing: {engine}, {model} {format_} {column}: {reason}")
    return True


def _report(options: argparse.Namespace, workplace: Workplace) -> bool:
    """Write docs/results.md, its picture, its record and the README's table from what was measured."""
    try:
        record = Record.read(_out(options, workplace))
    except FileNotFoundError:
        _say(f"nothing was measured in {_out(options, workplace)}; see `run`")
        return False
    if not record.samples():
        _say("there is no figure to report")
        return False
    docs: Path = options.docs
    docs.mkdir(parents=True, exist_ok=True)
    draw(record, docs / PLOT)
    (docs / PAGE).write_text(write_page(record), encoding="utf-8")
    (docs / RECORD).write_text(record.publish(), encoding="utf-8")
    _say(f"wrote {PAGE}, {PLOT} and {RECORD} in {docs}")
    readme = docs.parent / "README.md"
    if readme.is_file():
        readme.write_text(write_into(readme.read_text(encoding="utf-8"), record), encoding="utf-8")
        _say(f"wrote the table in {readme}")
    return True


_STEPS = {"setup": _setup, "models": _models, "run": _run, "report": _report}


def _out(options: argparse.Namespace, workplace: Workplace) -> Path:
    chosen: Path | None = options.out
    return chosen or workplace.runs / "latest"


def _skipped(entries: Sequence[str]) -> dict[str, list[str]]:
    """ "llamacpp:mixed" -> {"llamacpp": ["mixed"]}."""
    skipped: dict[str, list[str]] = {}
    for entry in entries:
        engine, _, column = entry.partition(":")
        if engine not in BY_NAME or column not in COLUMNS:
            raise SystemExit(f"--skip takes ENGINE:COLUMN, such as llamacpp:mixed, not {entry!r:.80}")
        skipped.setdefault(engine, []).append(column)
    return skipped


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Headrace beside the engines that a user would pick instead, on the same work.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [peer.name for peer in ENGINES]
    add = parser.add_argument
    add("step", nargs="?", default="all", choices=["all", *_STEPS])
    add(
        "--work",
        type=Path,
        default=DEFAULT,
        help="folder of environments, models and runs (default: $HEADRACE_PEERS_WORK or %(default)s)",
    )
    add("--only", nargs="+", choices=[peer.name for peer in PEERS], help="setup: peers to install")
    add("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    add("--peers", nargs="+", choices=names, help=f"engines to run; {HEADRACE.name} is one of them")
    add("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    add("--columns", nargs="+", choices=list(COLUMNS), default=list(COLUMNS))
    add("--minutes", type=float, default=42.0, help="rounds that can be spared end after these (default: 42)")
    add("--threads", type=int, default=2, help="for every engine (default: 2)")
    add("--quick", action="store_true", help="a few tokens and one round: shows that every cell works")
    add("--skip", nargs="+", default=[], metavar="ENGINE:COLUMN", help="spare a slow engine a column")
    add("--limit", type=float, default=240.0, metavar="SECONDS", help="of one measurement (default: 240)")
    add(
        "--docs",
        type=Path,
        default=ROOT / "docs",
        help="report: where to write results.md; README.md beside that folder gets the table (default: %(default)s)",
    )
    add("--out", type=Path, help="folder of this run; one that was interrupted there continues")
    return parser


if __name__ == "__main__":
    sys.exit(main())
