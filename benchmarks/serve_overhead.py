"""The overhead of serving: the same requests through `LLM.generate` and through `headrace serve`.

    python -m benchmarks.serve_overhead --streams 32 --output-len 400 --rounds 5

Both are loaded, then take turns, so that other load on the machine affects both. Every process reports the CPU time
that it used for each token as well: the client shares the machine with the server, and other programs may, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace import LLM, SamplingParams
from headrace.sim.workload.sessions import Lengths, WordRate, Workload

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    """One round. CPU times in seconds by process."""

    wall_s: float
    tokens: int
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        return self.tokens / self.wall_s


def offline(llm: LLM, args: argparse.Namespace, number: int) -> Run:
    """All requests at once, as text to text, like the server."""
    workload = Workload(Lengths.fixed(args.input_len), Lengths.fixed(args.output_len))
    sessions = itertools.islice(workload.sessions(number, WordRate(1.0, 1.0)), args.streams)
    prompts = [session.turns[0].text for session in sessions]
    params = SamplingParams(temperature=0.0, max_tokens=args.output_len, ignore_eos=True)
    start, cpu = time.perf_counter(), time.process_time()
    done = llm.generate(prompts, params)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    return Run(wall, sum(len(one.outputs[0].token_ids) for one in done), {"offline": cpu})


class Served:
    """`headrace serve`, and one client process a round."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "serve", args.model, "--port", "0", *_engine(args),
             *([] if args.stream_interval_s is None else ["--stream-interval-s", str(args.stream_interval_s)])],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = next(line for line in self._process.stdout if " is ready at " in line)
        self.url = line.split(" is ready at ")[1].split()[0]
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        self.pids = {"server": self._process.pid, "engine": int(children.split()[0])}

    def run(self, number: int) -> Run:
        args = self._args
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "out.json"
            before = {name: _cpu_s(pid) for name, pid in self.pids.items()}
            subprocess.run(
                [
                    sys.executable, "-m", "headrace", "bench", "serve", "--base-url", self.url, "--ignore-eos",
                    "--dataset-name", "random", "--input-len", str(args.input_len), "--output-len",
                    str(args.output_len), "--num-prompts", str(args.streams), "--seed", str(number),
                    "--num-warmups", "0", "--json", str(path),
                ],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            cpu = {name: _cpu_s(pid) - before[name] for name, pid in self.pids.items()}
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["rows"][0]["values"]
        if values["answered"] != args.streams:
            raise SystemExit(f"only {values['answered']:g} of {args.streams} requests were answered")
        cpu["client"] = values["client_share"] * values["wall_s"]
        return Run(values["wall_s"], int(values["output_tokens"]), cpu)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def _engine(args: argparse.Namespace) -> list[str]:
    return ["--num-threads", str(args.num_threads), "--max-num-seqs", str(args.streams)]


def _cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def describe(name: str, runs: list[Run]) -> str:
    costs = ", ".join(
        f"{process} {statistics.median(run.cpu_s[process] / run.tokens for run in runs) * 1e6:.1f}"
        for process in runs[0].cpu_s
    )
    rates = [run.rate for run in runs]
    return (
        f"{name:8} {statistics.median(rates):8,.0f} tok/s median, {max(rates):8,.0f} best; "
        f"CPU in microseconds a token: {costs}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tale")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-threads", type=int, default=1)
    parser.add_argument(
        "--stream-interval-s", type=float, default=None, help="of the server (default: its own)"
    )
    args = parser.parse_args()
    llm = LLM(args.model, num_threads=args.num_threads, max_num_seqs=args.streams, show_progress=False)
    served = Served(args)
    try:
        offline(llm, args, 10_000), served.run(10_000)  # warm up
        pairs = [(offline(llm, args, number), served.run(number)) for number in range(args.rounds)]
    finally:
        served.close()
    alone, over = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    print(f"{args.streams} streams of {args.output_len} tokens, {args.num_threads} engine threads")
    print(describe("offline", alone))
    print(describe("served", over))
    ratios = [after.rate / before.rate for before, after in pairs]
    best = max(run.rate for run in over) / max(run.rate for run in alone)
    print(f"served over offline: {statistics.median(ratios):.3f} median of pairs, {best:.3f} best over best")


if __name__ == "__main__":
    main()
