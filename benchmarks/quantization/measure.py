"""Commands as they are timed, and what their results lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from benchmarks.peers.workplace import ROOT
from headrace.evaluation.documents import read_records
from headrace.models.source import resolve_model
from headrace.quantize.calibration.texts import BUNDLED_CALIBRATION, calibration_texts
from headrace.text.tokenizer_source import open_tokenizer

LENGTH = 512
"""Tokens of a calibration text, at most."""
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Run:
    """What a command took: wall time and CPU time in seconds, and its peak resident memory in bytes."""

    wall_s: float
    cpu_s: float
    peak: int


def timed(command: Sequence[str]) -> Run:
    """The peak is read from the process while it runs: what the system reports at its end includes this process, from
    which it was forked."""
    begun, peak = time.perf_counter(), 0
    with TemporaryFile() as said:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=said)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, _peak(process.pid))
            time.sleep(_POLL_S)
        took = time.perf_counter() - begun
        said.seek(0)
        if status:
            raise SystemExit(f"{command[2]} failed: {said.read().decode(errors='replace')[-2000:]}")
    return Run(took, usage.ru_utime + usage.ru_stime, peak)


def _peak(pid: int) -> int:
    """Bytes; 0 where the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return 1024 * max((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), default=0)


def lost(model: Path, reference: str) -> dict[str, Any]:
    """What `headrace eval kl` says on the bundled held-out stories."""
    found: dict[str, Any] = json.loads(
        headrace("eval", "kl", str(model), "--reference", reference, "--json", "-")
    )
    return found


def texts_of(model: str, samples: int) -> list[tuple[int, ...]]:
    """The bundled texts that `headrace quantize --samples` calibrates on."""
    folder = resolve_model(model).path
    assert folder is not None
    records = read_records(BUNDLED_CALIBRATION)
    return calibration_texts(records, open_tokenizer(folder), samples, LENGTH, 0, "the bundled file")


def headrace(*words: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "headrace", *words], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"headrace {words[0]} failed: {run.stderr[-2000:]}")
    return run.stdout
