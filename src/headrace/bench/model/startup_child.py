"""The process that `headrace bench startup` launches: loads the model, generates one token and prints the times.

Only small standard modules are imported here, because importing the rest is timed.
"""

from __future__ import annotations

import time

STARTED = time.monotonic()

import importlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402


def main(words: list[str]) -> int:
    """`words`: a JSON object with "options" of the engine and "input_len". Prints moments on the monotonic clock,
    which all processes of a machine share, and the peak of resident memory in bytes."""
    job = json.loads(words[0])
    llm_module: Any = importlib.import_module("headrace.llm")
    build_module: Any = importlib.import_module("headrace.build")
    config_module: Any = importlib.import_module("headrace.config")
    imported = time.monotonic()
    build_module.survey(config_module.EngineConfig.from_kwargs(**job["options"]))
    configured = time.monotonic()
    llm = llm_module.LLM(show_progress=False, **job["options"])
    loaded = time.monotonic()
    vocab = llm.parts.spec.vocab_size
    prompt = [index % vocab for index in range(job["input_len"])]
    first = next(llm.stream({"prompt_token_ids": prompt}))
    answered = time.monotonic()
    moments = {
        "started": STARTED,
        "imported": imported,
        "configured": configured,
        "loaded": loaded,
        "answered": answered,
        "tokens": sum(len(output.token_ids) for output in first.outputs),
        "peak_rss_bytes": peak_rss_bytes(),
        "torch": "torch" in sys.modules,
    }
    print(json.dumps(moments), flush=True)
    return 0


def peak_rss_bytes() -> int:
    """Peak resident memory of this process, 0 if the system has no /proc.

    Not from getrusage: its value is inherited from the parent across fork and exec.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key == "VmHWM":
            return int(value.split()[0]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
