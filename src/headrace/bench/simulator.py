"""How fast the simulator is: simulated over real time, and its memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from headrace.bench.report import Row
from headrace.sim.simulate.load import Load, Service

Progress = Callable[[str], None]


def simulator_rows(service: Service, load: Load, rates: Sequence[float], progress: Progress) -> Iterator[Row]:
    """One row for each rate. `times_real` counts CPU seconds of this process, which other processes do not lengthen
    much; `peak_rss_bytes` is that of the process up to here."""
    for rate in rates:
        progress(f"rate {rate:g}")
        simulation = service.simulation(replace(load, arrivals=replace(load.arrivals, rate_per_s=rate)))
        cpu, begin = time.process_time(), time.perf_counter()
        tally = simulation.run()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - begin
        steps = sum(replica.steps + replica.skipped for replica in simulation.replicas)
        values = {
            "answered": float(tally.answered),
            "simulated_s": tally.last_s,
            "wall_s": wall,
            "cpu_s": cpu,
            "times_real": tally.last_s / cpu,
            "steps_per_s": steps / cpu,
            "simulated_per_s": tally.answered / cpu,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        }
        yield Row({"rate": round(rate, 6)}, values)
