"""The command: `python -m benchmarks.families [CASE...]`; see docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.families.cases import CASES, Case, Work
from benchmarks.families.layout import file_of
from benchmarks.peers.drivers.driving import Job
from benchmarks.peers.execute import Driver
from benchmarks.peers.peers import GGUF_WRITER, HEADRACE, LLAMACPP
from benchmarks.peers.work_items import Sizes
from benchmarks.peers.workplace import DEFAULT, ROOT, Workplace
from headrace.bench.native import roofline
from headrace.bench.report import machine_facts
from headrace.sim import work as step_work

ENGINES = (
    replace(HEADRACE, driver="benchmarks.families.headrace_driver"),
    replace(LLAMACPP, driver="benchmarks.families.llamacpp_driver"),
)

_EXAMPLES = """examples:
  python -m benchmarks.peers setup --only llamacpp    installs llama.cpp and gguf
  python -m benchmarks.families                       every case
  python -m benchmarks.families mixture --rounds 5"""

Rates = dict[str, list[float]]
"""Of every round: tokens a second by "prefill" and "decode", CPU seconds by "work_s"."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # engines are ended as after Ctrl-C
    workplace = Workplace(options.work.resolve())
    for name in options.cases or CASES:
        case = CASES[name] if options.layers is None else CASES[name].cut(options.layers)
        file = workplace.folder / "models" / f"family-{name}-{case.config['num_hidden_layers']}l.gguf"
        if not file.exists():
            _write(case, file, workplace)
        try:
            results = _measure(case, file, workplace, options)
        finally:
            if not options.keep:
                file.unlink()
        print(_table(name, case, results, options.threads), flush=True)
    return 0


def _write(case: Case, file: Path, workplace: Workplace) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    description, part = file.with_suffix(".json"), file.with_name(f"{file.name}.part")
    description.write_text(json.dumps(file_of(case.config, case.mix)), encoding="utf-8")
    python = str(workplace.python(GGUF_WRITER.name))
    command = [python, "-m", "benchmarks.families.random_file", str(description), str(part)]
    subprocess.run(command, cwd=ROOT, check=True)
    description.unlink()
    part.rename(file)


def _measure(
    case: Case, file: Path, workplace: Workplace, options: argparse.Namespace
) -> Mapping[Work, dict[str, Any]]:
    """By work: the rates of each engine by its name, and "limits". Engines take turns, one runs at a time."""
    results: dict[Work, dict[str, Any]] = {work: {} for work in case.works}
    with ExitStack() as stack:
        drivers = {}
        for peer in ENGINES:
            job = Job(
                str(file), "gguf", options.threads, options.kv_gib, case.batch, Sizes(prefill=case.longest), 0.0, -1
            )  # fmt: skip
            python = workplace.python(peer.name) if peer.own else Path(sys.executable)
            drivers[peer.name] = Driver(peer, python, job, workplace.logs / f"{peer.name}-{file.stem}.log")
            stack.callback(drivers[peer.name].close)
        for round_ in range(options.rounds):
            for work in case.works:
                for name in drivers if round_ % 2 == 0 else reversed(drivers):
                    reply = drivers[name].measure(work.name, options.limit)
                    rates: Rates = results[work].setdefault(name, {"prefill": [], "decode": [], "work_s": []})
                    rates["work_s"].append(reply["work_s"])
                    for kind, rate in reply["rates"].items():
                        if rate is not None:
                            rates[kind].append(rate)
                    results[work]["limits"] = reply["limits"] or results[work].get("limits")
                    print(
                        f"{time.strftime('%H:%M:%S')} {name} {work.name}: {_brief(reply['rates'])}",
                        flush=True,
                    )
    return results


def _brief(rates: Mapping[str, float | None]) -> str:
    return ", ".join(f"{kind} {rate:.4g} tokens/s" for kind, rate in rates.items() if rate is not None)


def _table(name: str, case: Case, results: Mapping[Work, dict[str, Any]], threads: int) -> str:
    machine = machine_facts()
    lines = [
        f"### {case.title}, GGUF {case.mix} ({name})",
        "",
        f"{machine.cpu}, {threads} threads, {time.strftime('%Y-%m-%d')}. Tokens a second, medians of the rounds "
        "(lowest to highest). `CPU`: how many times the CPU seconds of the whole work llama.cpp takes; with one thread "
        "that hardly depends on what else runs. `limit`: share of the machine's.",
        "",
        "| work | Headrace | llama.cpp | times | goal | CPU | limit |",
        "|---|---|---|---|---|---|---|",
        *(line for work, found in results.items() for line in _lines(work, found, threads)),
    ]  # fmt: skip
    return "\n".join(["", *lines, ""])


def _lines(work: Work, found: Mapping[str, Any], threads: int) -> Iterator[str]:
    for kind, goal in (("prefill", work.prefill_goal), ("decode", work.decode_goal)):
        ours, theirs = (found[peer.name][kind] for peer in ENGINES)
        if not ours or (kind == "prefill" and work.outputs > 1 and work.prefill_goal is None):
            continue
        tokens = work.batch * (work.prompt if kind == "prefill" else 1)
        limit = _limit_s(found["limits"][kind], threads)
        title = f"{kind} {work.prompt}" if kind == "prefill" else f"decode B={work.batch} at {work.prompt}"
        middle = statistics.median(ours)
        cpu = [statistics.median(found[peer.name]["work_s"]) for peer in ENGINES]
        yield (
            f"| {title} | {_figure(ours)} | {_figure(theirs)} | {middle / statistics.median(theirs):.2f} | "
            f"{goal or ''} | {cpu[1] / cpu[0]:.2f} | {'' if limit is None else f'{limit * middle / tokens:.2f}'} |"
        )


def _figure(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):.4g} ({min(rates):.4g} to {max(rates):.4g})"


def _limit_s(work: Mapping[str, Any], threads: int) -> float | None:
    machine = roofline.measure_roofline(threads=threads)
    if machine is None:
        return None
    return machine.limit(step_work.Work(work["bytes"], work["operations"])).seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.families",
        description="Headrace and llama.cpp by turns on one GGUF file with random weights for each kind of model.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("cases", nargs="*", choices=[*CASES, []], help=f"default: all of {', '.join(CASES)}")
    add("--work", type=Path, default=DEFAULT, help="folder of environments and models (default: %(default)s)")
    add("--rounds", type=int, default=3)
    add("--layers", type=int, help="of the model, instead of the case's: measures sooner")
    add("--threads", type=int, default=2, help="for both engines (default: 2)")
    add("--kv-gib", type=int, default=2, help="GiB of KV cache (default: 2)")
    add("--limit", type=float, default=600.0, metavar="SECONDS", help="of one measurement (default: 600)")
    add("--keep", action="store_true", help="leave the files, up to 4 GB each, in the folder of models")
    return parser


if __name__ == "__main__":
    sys.exit(main())
