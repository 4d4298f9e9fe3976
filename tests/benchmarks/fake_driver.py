"""A driver without an engine: tokens come 1 ms apart. The model's name selects the fault."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.drivers.driving import Job, main
from benchmarks.peers.work_items import Request

RATE = 1000.0


class FakeEngine:
    def __init__(self, job: Job) -> None:
        self._mode = Path(job.model).name
        self._runs = 0
        self.facts = {"kv": "none"}
        if self._mode == "broken":
            raise RuntimeError("no such model")
        if self._mode == "hanging":
            time.sleep(60)
        assert os.environ["FAKE_THREADS"] == str(job.threads)

    def run(self, work: Sequence[Request]) -> list[list[float]]:
        self._runs += 1
        if self._mode == "crashing" and self._runs == 2:
            os.abort()
        begin = time.perf_counter()
        return [[begin + (1 + at) / RATE for at in range(request.outputs)] for request in work]


if __name__ == "__main__":
    main(FakeEngine)
