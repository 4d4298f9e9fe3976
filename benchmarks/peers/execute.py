"""A driver in a process of its own: started, asked for figures, stopped while others run; failures are reported."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers.drivers.driving import Job
from benchmarks.peers.peers import Peer, variables
from benchmarks.peers.workplace import ROOT

_LAST_LINES = 3
_MAX_REASON = 300
_POLL_S, _EXIT_S = 0.5, 10.0


class DriverError(Exception):
    """A driver returned no figure; the text is the reason."""


class Driver:
    """One engine with a loaded model. It runs only inside `measure`; between calls its processes are stopped.

    What it prints goes to `log`. `facts` says how it runs, known after the first figure.
    """

    def __init__(self, peer: Peer, python: Path, job: Job, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.facts: Mapping[str, Any] = {}
        self._log, self._received, self._cpu_s = log, b"", 0.0
        self._replies, write_end = os.pipe()
        self._folder = tempfile.TemporaryDirectory()
        job_file = Path(self._folder.name) / "job.json"
        # Only the driver's own environment: the caller's path would add other packages.
        environment = {**os.environ, **variables(peer, job.threads, job.kv_gib)}
        for name in ("PYTHONPATH", "VIRTUAL_ENV"):
            environment.pop(name, None)
        started = replace(job, replies=write_end, launched_at=time.time())
        job_file.write_text(json.dumps(started.to_json()), encoding="utf-8")
        with log.open("a", encoding="utf-8") as out:
            self._process = subprocess.Popen(
                [str(python), "-m", peer.driver, str(job_file)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        os.close(write_end)

    @property
    def pid(self) -> int:
        """Of the driver's process, the leader of its process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def measure(self, column: str, limit_s: float) -> dict[str, Any]:
        """One column's reply: figure, share, and the cpu_s that it took. A process that fails or times out is ended.

        Raises DriverError with the reason.
        """
        until = time.monotonic() + limit_s
        try:
            self._signal(signal.SIGCONT)
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it ended: the missing reply below gives the reason
                self._process.stdin.write(f"{column}\n".encode())
                self._process.stdin.flush()
            reply = self._reply(until, limit_s)
            if "facts" in reply:
                self.facts = reply["facts"]
                reply = self._reply(until, limit_s)
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise
        self._cpu_s, reply["cpu_s"] = reply["cpu_s"], reply["cpu_s"] - self._cpu_s
        return reply

    def close(self) -> None:
        """End the driver and everything that it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            os.close(self._replies)
            self._folder.cleanup()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _reply(self, until: float, limit_s: float) -> dict[str, Any]:
        while b"\n" not in self._received:
            left = until - time.monotonic()
            if left <= 0:
                raise DriverError(f"took longer than {limit_s:.0f} s")
            if select.select([self._replies], [], [], min(left, _POLL_S))[0]:
                data = os.read(self._replies, 1 << 16)
                self._received += data
                if data:
                    continue
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(min(left, _EXIT_S))
                if self.alive:
                    raise DriverError("stopped replying")
            if not self.alive and b"\n" not in self._received:
                raise DriverError(self._ending())
        line, _, self._received = self._received.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _ending(self) -> str:
        code = self._process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        lines = [
            line.strip() for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
        last = " / ".join([line for line in lines if line][-_LAST_LINES:]) or "it printed nothing"
        return f"{how}: {last}"[:_MAX_REASON]
