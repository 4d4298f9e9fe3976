"""The steps of a closed batch, each with its time and with what the model took of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.bench.calibration.cases import undisturbed
from headrace.bench.model.profile import Profiled
from headrace.bench.workload import fixed_lengths
from headrace.build import EngineParts
from headrace.sim.work import StepShape, step_shape


@dataclass(frozen=True, slots=True)
class StepTime:
    """calls: seconds of each call of the tape, in order; none without a tape. cpu_s: of this process."""

    shape: StepShape
    seconds: float
    cpu_s: float
    calls: tuple[float, ...]

    @property
    def model_s(self) -> float:
        """Inside the calls."""
        return sum(self.calls)

    @property
    def decodes(self) -> bool:
        """Every sequence has one new token."""
        return all(part.tokens == 1 and part.logits == 1 for part in self.shape)


def closed_batch(
    parts: EngineParts,
    batch: int,
    prompt: int,
    output: int,
    seed: int,
    tape: Profiled | None = None,
    before: Callable[[], None] | None = None,
) -> Iterator[StepTime]:
    """Send `batch` requests at once and run them to their end. The engine must be idle.

    `seed` gives the prompts: an equal one would hit the prefix cache. With a tape its profile is on meanwhile.
    `before` is called before each step.
    """
    arrivals = fixed_lengths(
        batch, prompt_tokens=prompt, output_tokens=output, vocab_size=parts.spec.vocab_size, seed=seed
    )
    begin = time.perf_counter()
    for arrival in arrivals:
        parts.engine.add(arrival.request, begin)
    if tape is not None:
        tape.profile(True)
    try:
        while parts.engine.has_work:
            if before is not None:
                before()
            if tape is not None:
                tape.clear_costs()
            used, start = time.process_time(), time.perf_counter()
            plan = parts.engine.begin(start)
            result = parts.executor.execute(plan)
            parts.engine.finish(result, time.perf_counter())
            seconds, used = time.perf_counter() - start, time.process_time() - used
            if plan.slices:
                calls = () if tape is None else tuple(cost[2] for cost in tape.costs())
                yield StepTime(step_shape(plan), seconds, used, calls)
    finally:
        if tape is not None:
            tape.profile(False)


def undisturbed_step(steps: Sequence[StepTime], threads: int) -> float:
    """Seconds of a step of which `steps` are repetitions, as if no other program had run.

    Of one thread the processor time counts: it leaves out what others took. Of several, of each call of the tape a low
    quantile over the repetitions, and of what is outside of them: a long step is rarely undisturbed as a whole on a
    shared machine, but each of its calls sometimes is.
    """
    if threads == 1:
        return undisturbed([min(step.seconds, step.cpu_s) for step in steps])
    calls = (undisturbed(each) for each in zip(*(step.calls for step in steps), strict=True))
    return sum(calls) + undisturbed([step.seconds - step.model_s for step in steps])
