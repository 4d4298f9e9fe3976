"""What the drivers share: the job they read, the work they do, the figures they write. Standard library alone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.work_items import Request, Sizes, figure, requests, sizes_from_json

WARM_UP_OUTPUTS = 8


@dataclass(frozen=True, slots=True)
class Job:
    """One process: which model, what to measure in it, in this order.

    launched_at: time.time() just before the process was started. report: file that the figures are written to.
    """

    model: str  # a folder or a file
    format: str  # of FORMATS
    columns: tuple[str, ...]
    threads: int
    kv_gib: int
    max_seqs: int
    sizes: Sizes
    launched_at: float
    report: str

    def to_json(self) -> dict[str, Any]:
        """Plain values for the file that a driver is given."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        """Inverse of `to_json`."""
        return cls(**{**data, "columns": tuple(data["columns"]), "sizes": sizes_from_json(data["sizes"])})


class Engine(Protocol):
    """A loaded model."""

    def run(self, work: Sequence[Request]) -> list[list[float]]:
        """Serve all requests at once, greedily; time.perf_counter() of every output token, by request."""
        ...


def main(load: Callable[[Job], Engine]) -> None:
    """Do the job in the file that the command line names. `load` makes the engine."""
    job = Job.from_json(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    figures: dict[str, float] = {}
    shares: dict[str, float] = {}
    engine = load(job)
    for column in job.columns:
        figures[column], shares[column] = _measure(engine, job, column)
        _write(job, figures, shares)


def _measure(engine: Engine, job: Job, column: str) -> tuple[float, float]:
    """The figure, and which share of its threads' time this process was really given; 1 on a quiet machine.

    Threads that wait asleep lower the share too, so it shows trouble but corrects nothing.
    """
    work = requests(column, job.sizes)
    if column not in ("startup", "memory"):
        _warm_up(engine, job, column)
    begin, cpu_s = time.perf_counter(), time.process_time()
    times = engine.run(work)
    share = (time.process_time() - cpu_s) / ((time.perf_counter() - begin) * job.threads)
    if column == "startup":
        return time.time() - job.launched_at, share
    if column == "memory":
        return float(peak_rss_bytes()), share
    return figure(column, work, begin, times), share


def _warm_up(engine: Engine, job: Job, column: str) -> None:
    """The column's shapes once, on other prompts and for few tokens: compiling and first touches are not speed."""
    work = requests(column, job.sizes, seed=1)
    if column == "mixed":
        work = work[: max(1, len(work) // 16)]
    engine.run([Request(request.prompt, min(request.outputs, WARM_UP_OUTPUTS)) for request in work])


def _write(job: Job, figures: dict[str, float], shares: dict[str, float]) -> None:
    """After every column, so that what was measured before a crash counts."""
    Path(job.report).write_text(json.dumps({"figures": figures, "shares": shares}), encoding="utf-8")


def peak_rss_bytes() -> int:
    """Most memory that this process had resident. Linux; VmHWM, because ru_maxrss counts the parent's at the fork."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")
