"""Gaps between tokens and throughput with and without a step time budget, in turn, on one loaded model.

    python -m benchmarks.step_budget shape:smollm2-135m --quantization int4
    python -m benchmarks.step_budget shape:tinyllama-1.1b --quantization int4 --requests 32
    python -m benchmarks.step_budget tale --rate 20

The engine runs in this process on one thread, and its clock is the CPU time of the process: other programs on the
machine hardly count. Streams send their next request when the one before has ended, or requests come at random
(Poisson) with --rate. See docs/serving.md.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.bench.measure import percentile
from headrace.build import EngineParts, assemble
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.sim.step_budget import step_budget


@dataclass(frozen=True, slots=True)
class Load:
    """rate: requests a second, None for a closed loop of `streams`. prompt, output: tokens of each request."""

    streams: int
    requests: int
    prompt: int
    output: int
    rate: float | None = None
    seed: int = 0


@dataclass(slots=True)
class Result:
    """Seconds; `wall_s` leaves out idle time."""

    wall_s: float = 0.0
    tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The 99th percentile of the gaps over their median."""
        return percentile(self.gaps, 0.99) / percentile(self.gaps, 0.5)


def run(parts: EngineParts, load: Load, clock: Callable[[], float] = time.process_time) -> Result:
    """Send every request, and step until all have ended."""
    engine, rng, result = parts.engine, random.Random(load.seed), Result()
    start_s, skipped_s, sent, ended = clock(), 0.0, 0, 0
    due, at = deque([0.0] * load.streams), 0.0
    if load.rate is not None:
        due = deque(at := at + rng.expovariate(load.rate) for _ in range(load.requests))
    arrivals: dict[str, float] = {}
    last: dict[str, float] = {}
    while ended < load.requests:
        now = clock() - start_s + skipped_s
        while due and due[0] <= now and sent < load.requests:
            name, arrival = f"r{sent}", due.popleft()
            arrivals[name] = arrival
            prompt = tuple(rng.randrange(10, engine.config.vocab_size) for _ in range(load.prompt))
            params = SamplingParams(max_tokens=load.output, temperature=0.0, ignore_eos=True)
            engine.add(NewRequest(name, prompt, params), arrival)
            sent += 1
        if not engine.has_work:
            skipped_s += due[0] - now
            continue
        done = parts.executor.execute(engine.begin(now))
        now = clock() - start_s + skipped_s
        for output in engine.finish(done, now):
            name = output.request_id
            if output.tokens:
                result.tokens += len(output.tokens)
                (result.gaps if name in last else result.ttft).append(now - last.get(name, arrivals[name]))
                last[name] = now
            if output.finish_reason is not None:
                ended += 1
                if load.rate is None:
                    due.append(now)
    result.wall_s = clock() - start_s
    return result


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_budget", description=__doc__.split("\n")[0]
    )
    parser.add_argument("model")
    parser.add_argument("--quantization", default=None)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rate", type=float, default=None, help="requests a second instead of streams")
    parser.add_argument("--budgets", nargs="+", default=["off", "auto"])
    args = parser.parse_args(words)
    load = Load(args.streams, args.requests, args.prompt, args.output, args.rate)
    for budget in args.budgets:
        config = EngineConfig(
            args.model, quantization=args.quantization, num_threads=1, step_time_budget=budget,
            enable_prefix_caching=False, max_model_len=args.prompt + args.output,
        )  # fmt: skip
        found = run(assemble(config, step_budget=step_budget), load)
        gaps = [percentile(found.gaps, share) for share in (0.5, 0.9, 0.99)]
        print(
            f"{budget:>6}: {found.tokens / found.wall_s:8.1f} tok/s  ITL p50 {1e3 * gaps[0]:7.1f} ms  "
            f"p90 {1e3 * gaps[1]:7.1f}  p99 {1e3 * gaps[2]:7.1f}, {found.ratio:.2f} x the median  "
            f"TTFT p50 {percentile(found.ttft, 0.5):.2f} s  p99 {percentile(found.ttft, 0.99):.2f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
