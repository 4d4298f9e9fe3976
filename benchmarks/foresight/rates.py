"""Requests at several rates: the engine in the time of its own steps, beside the scheduler in simulated time.

Both get the same requests and start with an empty cache. The real run has a virtual clock: it advances by the time that
each step really took, and jumps to the next arrival where nothing runs. So programs beside it disturb one thread, whose
processor time counts, hardly at all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.foresight.rows import Prediction, quantile
from benchmarks.foresight.steps import Subject
from headrace.bench.measure import time_per_output_token
from headrace.bench.workload import Arrival, mixed_lengths
from headrace.core.engine import Engine
from headrace.core.types import RequestStats, StepPlan, StepResult
from headrace.sim.online import DECODE, MIXED, PREFILL, OnlineCost, sums
from headrace.sim.simulate.executor import SimulatedExecutor, SyntheticTokens
from headrace.sim.work import StepShape, step_shape

PROMPTS, OUTPUTS = (16, 256), (8, 64)
RUNS, LONG_S = 5, 10.0
"""Runs of one load, the least disturbed of which counts, while they take less than `LONG_S` together."""
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the rate at which requests leave where all arrive at once."""
FIGURES = (("TTFT", 0.5), ("TTFT p99", 0.99), ("TPOT", 0.5), ("TPOT p99", 0.99))

Step = Callable[[StepPlan], tuple[StepResult, float]]
"""A step's result, and the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one run gave: times in seconds, tokens of output a second. busy_s: in steps."""

    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    tokens_per_s: float
    seconds: float
    busy_s: float

    def figure(self, name: str, share: float) -> float:
        """A quantile of TTFT or TPOT."""
        return quantile(self.ttft_s if name.startswith("TTFT") else self.tpot_s, share)


def drive(engine: Engine, step: Step, arrivals: Sequence[Arrival], finish_s: Callable[[], float]) -> Load:
    """Run all requests on a virtual clock. finish_s: what applying the last result took."""
    queue, now, busy, sent, tokens = sorted(arrivals, key=lambda one: one.at_s), 0.0, 0.0, 0, 0
    done: list[RequestStats] = []
    while sent < len(queue) or engine.has_work:
        while sent < len(queue) and queue[sent].at_s <= now:
            engine.add(queue[sent].request, queue[sent].at_s)
            sent += 1
        plan = engine.begin(now)
        result, seconds = step(plan)
        begun = now
        now += seconds if plan.slices else 0.0
        for output in engine.finish(result, now):
            tokens += len(output.tokens)
            if output.finish_reason is not None and output.stats is not None:
                done.append(output.stats)
        now += finish_s() if plan.slices else 0.0
        busy += now - begun
        if plan.empty and sent < len(queue):
            now = max(now, queue[sent].at_s)
    ttft = tuple(one.first_token_s - one.arrival_s for one in done if one.first_token_s is not None)
    tpot = tuple(each for one in done if (each := time_per_output_token(one)) is not None)
    return Load(ttft, tpot, tokens / now, now, busy)


def requests(count: int, rate: float | None, vocab_size: int, seed: int) -> list[Arrival]:
    """`count` requests of random tokens by a Poisson process, or all at once."""
    made = mixed_lengths(
        count, prompt_tokens=PROMPTS, output_tokens=OUTPUTS, vocab_size=vocab_size, seed=seed
    )
    rng, at = random.Random(f"arrivals {seed}"), 0.0
    found = []
    for arrival in made:
        found.append(replace(arrival, at_s=at))
        at += rng.expovariate(rate) if rate is not None else 0.0
    return found


def rate_rows(subject: Subject, count: int, progress: Callable[[str], None]) -> Iterator[Prediction]:
    """Rows of five rates up to saturation, which the cost model predicts."""
    vocab = subject.parts.spec.vocab_size
    progress(f"{subject.name} {subject.format}, the steps that correct predictions")
    online = OnlineCost(subject.model)
    measured_load(subject, requests(count // 2 + 1, None, vocab, 99), online)

    def corrected_s(shape: StepShape) -> float:
        return subject.model.step_s(shape) * online.ratio(_kind(shape))

    whole = simulated(subject, requests(count, None, vocab, 0), subject.model.step_s)
    for number, share in enumerate(SHARES, 1):
        rate = share * count / whole.seconds
        load = requests(count, rate, vocab, number)
        progress(f"{subject.name} {subject.format}, {rate:.3g} requests/s")
        measured = _least_disturbed(subject, load)
        predicted = simulated(subject, load, subject.model.step_s)
        formula = simulated(subject, load, subject.model.formula_s)
        corrected = simulated(subject, load, corrected_s)
        label = f"{share:.0%} of saturation"
        for name, quantile_share in FIGURES:
            yield Prediction(
                subject.name, subject.format, label, name,
                *(one.figure(name, quantile_share) for one in (measured, predicted, formula, corrected)),
            )  # fmt: skip
        yield Prediction(
            subject.name, subject.format, label, "tokens/s",
            measured.tokens_per_s, predicted.tokens_per_s, formula.tokens_per_s,
            corrected.tokens_per_s,
        )  # fmt: skip


def _least_disturbed(subject: Subject, load: Sequence[Arrival]) -> Load:
    """Of some runs of the same load the one whose steps took least: other programs make steps slower, none faster."""
    end, runs = time.monotonic() + LONG_S, [measured_load(subject, load)]
    while len(runs) < RUNS and time.monotonic() < end:
        runs.append(measured_load(subject, load))
    return min(runs, key=lambda one: one.busy_s)


def simulated(subject: Subject, load: Sequence[Arrival], price: Callable[[StepShape], float]) -> Load:
    """The production scheduler in simulated time."""
    executor = SimulatedExecutor(SyntheticTokens(subject.parts.spec.vocab_size))
    return drive(
        _fresh(subject), lambda plan: (executor.execute(plan), price(step_shape(plan))), load, lambda: 0.0
    )


def measured_load(subject: Subject, load: Sequence[Arrival], online: OnlineCost | None = None) -> Load:
    """The real engine and model. Planning, the step, and what applies its result count. `online` observes all steps."""
    clock = time.process_time if subject.threads == 1 else time.perf_counter
    last = clock()

    def lap() -> float:
        nonlocal last
        before, last = last, clock()
        return last - before

    def step(plan: StepPlan) -> tuple[StepResult, float]:
        result = subject.parts.executor.execute(plan)
        seconds = lap()
        if online is not None and plan.slices:
            online.observe(*sums(plan), seconds)
        return result, seconds

    return drive(_fresh(subject), step, load, lap)


def _kind(shape: StepShape) -> str:
    """As `sim.online` names kinds of steps."""
    decoding = sum(part.tokens == 1 for part in shape)
    return PREFILL if not decoding else DECODE if decoding == len(shape) else MIXED


def _fresh(subject: Subject) -> Engine:
    """An engine with the same settings and an empty cache."""
    resolved = subject.parts.resolved
    return Engine(
        subject.parts.engine.config, resolved.kv_groups, prefix_caching=resolved.enable_prefix_caching
    )
