"""What drivers share: their job, the columns that they measure, their replies. Standard library only."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.work_items import Request, Sizes, figure, requests, sizes_from_json, warm_up_requests

ONCE = ("startup", "memory")
"""Columns that only a new process can measure, in this order, before any other."""


@dataclass(frozen=True, slots=True)
class Job:
    """The job of one process: model, format and limits.

    launched_at: time.time() just before the process was started. replies: file descriptor that it writes to.
    """

    model: str  # a folder or a file
    format: str  # of FORMATS
    threads: int
    kv_gib: int
    max_seqs: int
    sizes: Sizes
    launched_at: float
    replies: int

    def to_json(self) -> dict[str, Any]:
        """Plain values for the file that a driver is given."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        """Inverse of `to_json`."""
        return cls(**{**data, "sizes": sizes_from_json(data["sizes"])})


class Engine(Protocol):
    """A loaded model. `facts`: how it runs, for the record; Headrace's hold what the machine's limit depends on."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """How the engine runs."""
        ...

    def run(self, work: Sequence[Request]) -> list[list[float]]:
        """Serve all requests at once, greedily; time.perf_counter() of every output token, by request."""
        ...


def main(load: Callable[[Job], Engine]) -> None:
    """Load the job in the file that the command line names, then measure the columns that stdin names, one a line.

    Every reply is a line of JSON: first the engine's facts, then for each column its figure and the CPU share.
    """
    job = Job.from_json(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    with os.fdopen(job.replies, "w", encoding="utf-8") as replies:

        def reply(content: Mapping[str, Any]) -> None:
            replies.write(json.dumps(content) + "\n")
            replies.flush()

        engine = load(job)
        reply({"facts": dict(engine.facts)})
        warm: set[str] = set()
        for line in sys.stdin:
            column = line.strip()
            if column not in ONCE and column not in warm:
                engine.run(warm_up_requests(column, job.sizes))
                warm.add(column)
            value, share = _measure(engine, job, column)
            reply({"column": column, "figure": value, "share": share, "cpu_s": sum(os.times()[:4])})


def _measure(engine: Engine, job: Job, column: str) -> tuple[float, float]:
    """The figure, and the share of its threads' time that this process got; 1 on a quiet machine.

    Threads that sleep lower the share too: it shows interference and corrects nothing.
    """
    work = requests(column, job.sizes)
    begin, cpu_s = time.perf_counter(), time.process_time()
    times = engine.run(work)
    share = (time.process_time() - cpu_s) / ((time.perf_counter() - begin) * job.threads)
    if column == "startup":
        return time.time() - job.launched_at, share
    if column == "memory":
        return float(peak_rss_bytes()), share
    return figure(column, work, begin, times), share


def peak_rss_bytes() -> int:
    """Most memory that this process had resident. Linux; VmHWM, because ru_maxrss counts the parent's at the fork."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")
