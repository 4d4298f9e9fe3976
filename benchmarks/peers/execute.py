"""Runs one driver in a process of its own and reads its figures; a failure is a reason, never an exception."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peers.drivers.driving import Job
from benchmarks.peers.peers import Peer, variables
from benchmarks.peers.workplace import ROOT

_LAST_LINES = 3
_MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures by column, and why some are missing; `reason` is None where all are there.

    shares: by column, the part of its threads' time that the driver was given.
    """

    figures: Mapping[str, float]
    shares: Mapping[str, float]
    reason: str | None
    wall_s: float


def run_driver(peer: Peer, python: Path, job: Job, log: Path, limit_s: float) -> Outcome:
    """Start the driver and wait for it, at most `limit_s`. What it prints goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        job_file, report = Path(folder) / "job.json", Path(folder) / "report.json"
        environment = {**os.environ, **variables(peer, job.threads, job.kv_gib)}
        # Only what the driver's own environment holds; and the caller's path would lead it to other packages.
        environment = {
            name: text for name, text in environment.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        begin = time.monotonic()
        started = replace(job, report=str(report), launched_at=time.time())
        job_file.write_text(json.dumps(started.to_json()), encoding="utf-8")
        reason = _wait([str(python), "-m", peer.driver, str(job_file)], environment, log, limit_s)
        wall_s = time.monotonic() - begin
        found = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
    figures, shares = found.get("figures", {}), found.get("shares", {})
    if reason is None and set(figures) != set(job.columns):
        reason = "the driver ended without its figures"
    return Outcome(figures, shares, reason, wall_s)


def _wait(command: list[str], environment: dict[str, str], log: Path, limit_s: float) -> str | None:
    """None, or why it failed. A driver that is out of time is ended with everything that it started."""
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"took longer than {limit_s:.0f} s"
        finally:
            _end_group(process)
    if code == 0:
        return None
    how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
    return f"{how}: {_last_words(log)}"[:_MAX_REASON]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the driver's process group, also when we are interrupted."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    return " / ".join([line for line in lines if line][-_LAST_LINES:]) or "it said nothing"
