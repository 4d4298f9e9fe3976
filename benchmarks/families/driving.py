"""What both drivers share: work by its name on stdin, rates by replies. Standard library only."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.drivers.driving import Engine, Job
from benchmarks.peers.work_items import SMALLEST_VOCABULARY, Request

_FIRST_ID = 259
_WARM_UP = Request(tuple(range(_FIRST_ID, _FIRST_ID + 16)), 4)

Limits = Callable[[int, int, int], Mapping[str, Any]]
"""What of (batch, prompt, outputs) the machine's limit depends on."""


def main(load: Callable[[Job], Engine], limits: Limits = lambda batch, prompt, outputs: {}) -> None:
    """Load the job in the file that the command line names, then do the work that stdin names, one a line.

    Every reply is a line of JSON: first the engine's facts, then for each work its rates in tokens a second: "prefill"
    up to the first token of the last request, "decode" from there on (None with one output); and "work_s", the CPU
    seconds of the whole work.
    """
    job = Job.from_json(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    with os.fdopen(job.replies, "w", encoding="utf-8") as replies:

        def reply(content: Mapping[str, Any]) -> None:
            replies.write(json.dumps(content) + "\n")
            replies.flush()

        engine = load(job)
        reply({"facts": dict(engine.facts)})
        engine.run([_WARM_UP])
        for number, line in enumerate(sys.stdin):
            batch, prompt, outputs = (int(part) for part in line.split("x"))
            ids = random.Random(f"{line}-{number}")
            work = [
                Request(tuple(ids.randrange(_FIRST_ID, SMALLEST_VOCABULARY) for _ in range(prompt)), outputs)
                for _ in range(batch)
            ]
            begin, cpu_s = time.perf_counter(), time.process_time()
            times = engine.run(work)
            cpu_s = time.process_time() - cpu_s
            started, ended = max(one[0] for one in times), max(one[-1] for one in times)
            after = sum(time > started for one in times for time in one)
            rates = {
                "prefill": batch * prompt / (started - begin),
                "decode": after / (ended - started) if after else None,
            }
            reply(
                {
                    "rates": rates,
                    "work_s": cpu_s,
                    "limits": limits(batch, prompt, outputs),
                    "cpu_s": sum(os.times()[:4]),
                }
            )
