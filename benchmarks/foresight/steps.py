"""Closed batches: decode steps by batch, and prompts by length."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.foresight.rows import Prediction
from headrace.bench.profile import Profiled
from headrace.bench.step_times import StepTime, closed_batch, undisturbed_step
from headrace.build import EngineParts
from headrace.sim.cost import CostModel
from headrace.sim.work import StepShape

PROMPT, OUTPUT = 8, 24
"""Tokens of a request of a closed batch."""
REPEATS_S = 6.0
"""Prompts are repeated while they take less."""
MOST_REPEATS = 8


@dataclass(slots=True)
class Subject:
    """A loaded model, and its cost model. One thread is measured in processor time: see `undisturbed_step`."""

    name: str
    format: str
    parts: EngineParts
    tape: Profiled
    model: CostModel
    _seed: int = field(default=0, init=False)

    @property
    def threads(self) -> int:
        return self.parts.resolved.num_threads

    def run(self, batch: int, prompt: int, output: int) -> list[StepTime]:
        """The steps of one closed batch; its prompts are new."""
        self._seed += 1
        return list(closed_batch(self.parts, batch, prompt, output, self._seed, self.tape))

    def row(
        self, load: str, figure: str, measured: float, shapes: Sequence[StepShape], per: int
    ) -> Prediction:
        """A row of steps of these shapes, which give `per` times the figure."""
        predicted = sum(self.model.step_s(shape) for shape in shapes) / per
        formula = sum(self.model.formula_s(shape) for shape in shapes) / per
        return Prediction(self.name, self.format, load, figure, measured, predicted, formula)


def decode_rows(subject: Subject, batches: Sequence[int]) -> Iterator[Prediction]:
    """TPOT, and output tokens a second, of closed batches whose sequences all decode."""
    for batch in batches:
        steps = [
            step for step in subject.run(batch, PROMPT, OUTPUT) if step.decodes and len(step.shape) == batch
        ]
        shapes = [step.shape for step in steps]
        measured = undisturbed_step(steps, subject.threads)
        yield subject.row(f"{batch} decode", "TPOT", measured, shapes, len(shapes))


def prefill_rows(subject: Subject, lengths: Sequence[int]) -> Iterator[Prediction]:
    """TTFT of one prompt, which is computed in chunks."""
    for length in lengths:
        runs: list[list[StepTime]] = []
        while not runs or (len(runs) < MOST_REPEATS and _seconds(runs) < REPEATS_S):
            runs.append(subject.run(1, length, 1))
        chunks = [list(each) for each in zip(*runs, strict=True)]
        measured = sum(undisturbed_step(chunk, subject.threads) for chunk in chunks)
        yield subject.row(f"prompt of {length}", "TTFT", measured, [chunk[0].shape for chunk in chunks], 1)


def _seconds(runs: Sequence[Sequence[StepTime]]) -> float:
    return len(runs) * statistics.fmean(sum(step.seconds for step in run) for run in runs)
