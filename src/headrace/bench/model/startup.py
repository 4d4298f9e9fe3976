"""Time of a fresh process to its first token, phase by phase, and its peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from headrace.bench.model.latency import Progress
from headrace.bench.repeats import Repeats
from headrace.bench.report import Row, row_of_runs
from headrace.errors import HeadraceError

TIMEOUT_S = 600.0
_MODULE = "headrace.bench.model.startup_child"


def startup_rows(
    options: Mapping[str, object], *, input_len: int, repeats: int, progress: Progress
) -> Iterator[Row]:
    """One row: medians over `repeats` launches of a process that loads the model and answers `input_len` tokens.

    One more launch comes first and is not counted: it brings the files into the page cache. `options` are those
    of EngineConfig. Raises HeadraceError with the last line of its stderr if it fails.
    """
    found = Repeats(partial(launch, options, input_len=input_len), repeats, partial(progress, "launch"))
    yield row_of_runs({"model": str(options["model"])}, found.runs)
    found.reraise()


def launch(options: Mapping[str, object], *, input_len: int) -> dict[str, float]:
    """Metrics of one launch."""
    job = json.dumps({"options": dict(options), "input_len": input_len})
    launched = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", _MODULE, job],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HeadraceError(f"no first token within {TIMEOUT_S:.0f} s of the launch") from None
    ended = time.monotonic()
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise HeadraceError(f"the launched process failed: {lines[-1]:.500}")
    moments: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {
        "startup_s": moments["answered"] - launched,
        "launch_s": moments["started"] - launched,
        "import_s": moments["imported"] - moments["started"],
        "config_s": moments["configured"] - moments["imported"],
        "load_s": moments["loaded"] - moments["configured"],
        "first_token_s": moments["answered"] - moments["loaded"],
        "exit_s": ended - moments["answered"],
        "peak_rss_bytes": float(moments["peak_rss_bytes"]),
    }
