"""The time of a step by op, summed over layers, and the engine's overhead."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.bench.measure import Measured, Step, run_workload
from headrace.bench.model.latency import Progress
from headrace.bench.model.subject import Subject
from headrace.bench.report import Label, Row
from headrace.bench.workload import fixed_lengths
from headrace.core.executor import Executor
from headrace.core.types import StepPlan, StepResult
from headrace.errors import ConfigError
from headrace.runner.executor import ModelExecutor
from headrace.sim.work import Work

OVERHEAD = "engine overhead"
STEP = "step"

Cost = tuple[str, int, float, float, float]
"""(name, layer or -1, seconds, bytes, operations) of one call of the tape."""


class Profiled(Protocol):
    """The profiling methods of headrace._native.Tape."""

    def profile(self, on: bool) -> None: ...
    def clear_costs(self) -> None: ...
    def costs(self) -> list[Cost]: ...


@dataclass(slots=True)
class OpCost:
    """One op of one step, over all layers."""

    calls: int = 0
    seconds: float = 0.0
    bytes: float = 0.0
    operations: float = 0.0

    def take(self, cost: Cost) -> None:
        self.calls += 1
        self.seconds += cost[2]
        self.bytes += cost[3]
        self.operations += cost[4]


@dataclass(slots=True)
class ProfilingExecutor:
    """Forwards steps and records the cost of each op in each of them."""

    inner: Executor
    tape: Profiled
    steps: list[dict[str, OpCost]] = field(default_factory=list)

    def execute(self, plan: StepPlan) -> StepResult:
        if not plan.slices:
            return self.inner.execute(plan)
        self.tape.clear_costs()
        result = self.inner.execute(plan)
        self.steps.append(by_op(self.tape.costs()))
        return result


def tape_of(executor: Executor) -> Profiled | None:
    """The tape of a model that runs on native kernels, else None."""
    model = executor.model if isinstance(executor, ModelExecutor) else None
    return getattr(model, "tape", None)


def by_op(costs: Sequence[Cost]) -> dict[str, OpCost]:
    """Costs of one step added up over layers, in the order in which the ops first run."""
    ops: dict[str, OpCost] = {}
    for cost in costs:
        ops.setdefault(cost[0], OpCost()).take(cost)
    return ops


def profile_rows(
    subject: Subject,
    tape: Profiled,
    *,
    batch_sizes: Sequence[int],
    input_len: int,
    output_len: int,
    prefill: bool,
    repeats: int,
    progress: Progress,
) -> Iterator[Row]:
    """Rows for each batch size: one an op, one for the engine around them, one for the whole step.

    Figures are means over the decode steps of a closed batch, or over its prefill steps, of that one of the repeats in
    which the step took its median time: the rows of one run add up. One more run warms up.
    """
    for batch in batch_sizes:
        subject.check(batch=batch, length=input_len + output_len)
    for batch in batch_sizes:
        runs = []
        for repeat in range(repeats + 1):
            progress(f"batch {batch}")
            executor = ProfilingExecutor(subject.parts.executor, tape)
            tape.profile(True)
            try:
                arrivals = fixed_lengths(
                    batch, prompt_tokens=input_len, output_tokens=output_len,
                    vocab_size=subject.vocab_size, seed=subject.next_seed(),
                )  # fmt: skip
                run = run_workload(subject.parts.engine, executor, arrivals)
            finally:
                tape.profile(False)
            if repeat:
                runs.append(_Profile.of(run, executor.steps, prefill))
        runs.sort(key=lambda one: one.step_s)
        yield from _rows(subject, runs[(len(runs) - 1) // 2], batch)


@dataclass(frozen=True, slots=True)
class _Profile:
    """The chosen steps of one run: their shapes and times, the mean cost of every op, the mean time of a step."""

    steps: tuple[Step, ...]
    ops: Mapping[str, OpCost]
    step_s: float

    @classmethod
    def of(cls, run: Measured, costs: Sequence[Mapping[str, OpCost]], prefill: bool) -> _Profile:
        cut = run.decode_from
        steps, chosen = (run.steps[:cut], costs[:cut]) if prefill else (run.steps[cut:], costs[cut:])
        if not steps:
            raise ConfigError(
                "one output token leaves no decode step to profile: --output-len must be 2 or more"
            )
        return cls(steps, _mean(chosen), (steps[-1].end_s - steps[0].begin_s) / len(steps))


def _rows(subject: Subject, profile: _Profile, batch: int) -> Iterator[Row]:
    whole = profile.step_s
    for name, cost in profile.ops.items():
        yield _op_row(subject, batch, name, cost, whole)
    outside = max(0.0, whole - sum(cost.seconds for cost in profile.ops.values()))
    yield Row(
        {"batch": batch, "op": OVERHEAD},
        {"seconds": outside, "share": outside / whole, "overhead_s": outside},
    )
    limits = subject.against_roofline(profile.steps, whole * len(profile.steps))
    samples = tuple(step.end_s - step.begin_s for step in profile.steps)
    yield Row({"batch": batch, "op": STEP}, {"seconds": whole, "share": 1.0, **limits}, {"seconds": samples})


def _product(subject: Subject, op: str) -> str:
    if op == "attention":
        return subject.work.attention_product
    work = subject.work
    used = Counter(
        work.product(one) for one in work.program.ops if one.name == op and one.kind in ("linear", "logits")
    )
    return used.most_common(1)[0][0] if used else "f32"


def _mean(steps: Sequence[Mapping[str, OpCost]]) -> dict[str, OpCost]:
    """The mean step."""
    names = dict.fromkeys(name for step in steps for name in step)
    found = {name: [step[name] for step in steps if name in step] for name in names}
    return {
        name: OpCost(
            calls=round(statistics.fmean(cost.calls for cost in costs)),
            seconds=sum(cost.seconds for cost in costs) / len(steps),
            bytes=sum(cost.bytes for cost in costs) / len(steps),
            operations=sum(cost.operations for cost in costs) / len(steps),
        )
        for name, costs in found.items()
    }


def _op_row(subject: Subject, batch: int, name: str, cost: OpCost, whole: float) -> Row:
    values = {
        "calls": float(cost.calls),
        "seconds": cost.seconds,
        "share": cost.seconds / whole,
        "bytes": cost.bytes,
        "operations": cost.operations,
    }
    labels: dict[str, Label] = {"batch": batch, "op": name}
    if cost.seconds > 0:
        values["bytes_per_s"] = cost.bytes / cost.seconds
        values["operations_per_s"] = cost.operations / cost.seconds
        if subject.roofline is not None:
            product = _product(subject, name)
            limit = subject.roofline.limit(Work(cost.bytes, {product: cost.operations}))
            values["fraction"] = limit.seconds / cost.seconds
            labels["bound"] = limit.bound
    return Row(labels, values)
