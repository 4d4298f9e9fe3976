"""A file of what happened in a simulation, which the web page replays: a picture of each replica at every interval.

The first line says what the file is. Each further line is one replica's picture, as the page gets it from a live engine
(`core.snapshot_data`), with the replica's number.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from headrace.core.engine import EngineStats
from headrace.core.snapshot import snapshot
from headrace.core.snapshot_data import ending_data, snapshot_data
from headrace.core.types import Output
from headrace.errors import ConfigError
from headrace.sim.simulate.replica import Replica
from headrace.sim.simulate.run import Observer
from headrace.sim.simulate.tally import Distribution

VERSION = 1
MAX_BYTES = 256 << 20
"""Of a file; later pictures are left out, and the last line says so."""


class Timeline(Observer):
    """Writes the file while the simulation runs. A context manager. Raises ConfigError where it cannot be written."""

    def __init__(self, path: Path, interval_s: float, model: str) -> None:
        self.interval_s = interval_s
        self._path, self._model = path, model
        self._file: IO[str] | None = None
        self._size = 0
        self._before: dict[int, tuple[float, EngineStats]] = {}
        self._ended: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        self._ttft: defaultdict[int, Distribution] = defaultdict(Distribution)
        self._tpot: defaultdict[int, Distribution] = defaultdict(Distribution)

    def __enter__(self) -> Timeline:
        try:
            self._file = self._path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the timeline cannot be written to {self._path}: {error.strerror}") from None
        self._write({"headrace_timeline": VERSION, "model": self._model, "interval_s": self.interval_s})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def tick(self, now: float, replicas: list[Replica]) -> None:
        """Write a picture of each replica."""
        if self._size > MAX_BYTES:
            return
        for number, replica in enumerate(replicas):
            picture = snapshot(replica.engine, now)
            before = self._before.get(number)
            if before is not None and picture.stats.scheduler.steps < before[1].scheduler.steps:
                before = None  # it failed, and began again
            self._before[number] = (now, picture.stats)
            self._write(
                {"replica": number, "state": "ready" if replica.is_up else "failed"}
                | snapshot_data(picture, before)
                | {
                    "ttft": _percentiles(self._ttft[number]),
                    "itl": _percentiles(self._tpot[number]),
                    "ended": self._ended.pop(number, []),
                }
            )

    def ended(self, replica: int, output: Output) -> None:
        """Remember the end for the next picture."""
        self._ended[replica].append(ending_data(output))
        stats = output.stats
        if stats is None or stats.first_token_s is None or stats.last_token_s is None:
            return
        self._ttft[replica].add(stats.first_token_s - stats.arrival_s)
        if stats.num_output > 1:
            self._tpot[replica].add((stats.last_token_s - stats.first_token_s) / (stats.num_output - 1))

    def _write(self, line: dict[str, Any]) -> None:
        assert self._file is not None
        if self._size > MAX_BYTES:
            return
        text = json.dumps(line, separators=(",", ":")) + "\n"
        self._size += len(text)
        if self._size > MAX_BYTES:
            text = json.dumps({"truncated": f"the file would be larger than {MAX_BYTES} bytes"}) + "\n"
            self.interval_s = math.inf  # no more pictures
        self._file.write(text)


def _percentiles(found: Distribution) -> dict[str, float | None]:
    return {"count": found.count} | {
        f"p{share}": found.percentile(share / 100) if found.count else None for share in (50, 90, 99)
    }
