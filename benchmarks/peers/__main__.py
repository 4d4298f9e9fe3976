"""The command: `python -m benchmarks.peers [setup | models | run | report]`; without a word, all four in turn."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.install import InstallError, install
from benchmarks.peers.models import MODELS, config_of, is_written, write_folder
from benchmarks.peers.page import PLOT, write_page
from benchmarks.peers.peers import BY_NAME, ENGINES, FORMATS, GGUF_WRITER, HEADRACE, PEERS, Peer
from benchmarks.peers.plot import draw
from benchmarks.peers.record import Record
from benchmarks.peers.run import GGUF_FORMATS, Settings, run
from benchmarks.peers.work_items import COLUMNS, Sizes
from benchmarks.peers.workplace import DEFAULT, ROOT, Workplace

_EXAMPLES = """examples:
  python -m benchmarks.peers                          set up, make the models, three rounds, write docs/results.md
  python -m benchmarks.peers setup --only openvino    install one peer
  python -m benchmarks.peers run --peers headrace openvino --formats int4 --columns decode1 decode8 --rounds 1
  python -m benchmarks.peers report --out DIR         write the page again from what was measured"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(words)
    workplace = Workplace(options.work.resolve())
    steps = [options.step] if options.step != "all" else ["setup", "models", "run", "report"]
    try:
        done = all(_STEPS[step](options, workplace) for step in steps)
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on from here")
        return 130
    return 0 if done else 1


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _setup(options: argparse.Namespace, workplace: Workplace) -> bool:
    """Every peer that is asked for, and the package that writes their files. True where at least one is there."""
    wanted = [peer for peer in PEERS if not options.only or peer.name in options.only]
    failed = []
    for peer in (GGUF_WRITER, *wanted):
        try:
            done = install(peer, workplace, _say)
            _say(f"{peer.name}: {'installed' if done else 'installed before'}")
        except (InstallError, OSError, subprocess.CalledProcessError) as error:
            failed.append(peer.name)
            _say(f"{peer.name}: FAILED: {error}")
    return len(failed) <= len(wanted)


def _models(options: argparse.Namespace, workplace: Workplace) -> bool:
    for name in options.models:
        folder, config = workplace.model(name), config_of(MODELS[name])
        if is_written(folder, config):
            _say(f"{name}: written before")
        else:
            _say(f"{name}: writing {folder}")
            write_folder(folder, config)
        for quantization in GGUF_FORMATS.values():
            file = workplace.gguf(name, quantization)
            if not file.is_file() and not _write_gguf(folder, file, quantization, workplace):
                _say(f"{file.name}: FAILED; peers that need it will be missing")
    return True


def _write_gguf(folder: Path, file: Path, quantization: str, workplace: Workplace) -> bool:
    python = workplace.python(GGUF_WRITER.name)
    if not python.is_file():
        return False
    _say(f"{file.name}: writing")
    command = [str(python), "-m", "benchmarks.peers.gguf_writer", str(folder), str(file), quantization]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode == 0


def _run(options: argparse.Namespace, workplace: Workplace) -> bool:
    engines: list[Peer] = [peer for peer in ENGINES if not options.peers or peer.name in options.peers]
    settings = Settings(
        models=tuple(options.models),
        columns=tuple(options.columns),
        formats=tuple(options.formats),
        threads=options.threads,
        rounds=options.rounds,
        fresh=options.fresh,
        limit_s=options.limit,
        skipped=_skipped(options.skip),
        sizes=Sizes(outputs=options.outputs, mixed_requests=options.mixed_requests),
    )
    try:
        record = run(engines, settings, workplace, _out(options, workplace), _say)
    except ValueError as error:
        _say(str(error))
        return False
    for line in record.failures():
        _say(f"missing: {line}")
    return True


def _report(options: argparse.Namespace, workplace: Workplace) -> bool:
    """Write docs/results.md and its picture from what was measured."""
    try:
        record = Record.read(_out(options, workplace))
    except FileNotFoundError:
        _say(f"nothing was measured in {_out(options, workplace)}; see `run`")
        return False
    if not record.samples():
        _say("there is no figure to report")
        return False
    options.docs.mkdir(parents=True, exist_ok=True)
    draw(record, options.docs / PLOT)
    page = options.docs / "results.md"
    page.write_text(write_page(record), encoding="utf-8")
    _say(f"wrote {page}")
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
        help="where environments, models and runs lie (default: %(default)s)",
    )
    add("--only", nargs="+", choices=[peer.name for peer in PEERS], help="setup: peers to install")
    add("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    add("--peers", nargs="+", choices=names, help=f"engines to run; {HEADRACE.name} is one of them")
    add("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    add("--columns", nargs="+", choices=list(COLUMNS), default=list(COLUMNS))
    add("--rounds", type=int, default=3, help="figures are medians over the rounds (default: 3)")
    add("--threads", type=int, default=2, help="for every engine (default: 2)")
    add("--outputs", type=int, default=128, help="output tokens of the decode columns (default: 128)")
    add("--mixed-requests", type=int, default=64)
    add("--skip", nargs="+", default=[], metavar="ENGINE:COLUMN", help="spare a slow engine a column")
    add("--fresh", action="store_true", help="a new process for every column, which takes much longer")
    add("--limit", type=float, default=1800.0, metavar="SECONDS", help="of one process (default: 1800)")
    add(
        "--docs",
        type=Path,
        default=ROOT / "docs",
        help="report: where to write results.md (default: %(default)s)",
    )
    add("--out", type=Path, help="folder of this run; one that was interrupted there goes on")
    return parser


if __name__ == "__main__":
    sys.exit(main())
