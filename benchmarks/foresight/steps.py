"""Closed batches: decode steps by batch, and prompts by length."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.foresight.rows import Prediction
from headrace.bench.model.profile import Profiled
from headrace.bench.model.step_times import StepTime, closed_batch, undisturbed_step
from headrace.build import EngineParts
from headrace.sim.cost import CostModel
from headrace.sim.work import StepShape

PROMPT, OUTPUT = 8, 24
"""Tokens of a request of a closed batch."""
ROUNDS_S = 40.0
"""Rounds are repeated while they take less."""
LEAST_ROUNDS, MOST_ROUNDS = 2, 40


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


@dataclass(slots=True)
class Closed:
    """Decode steps by batch, and the chunks of prompts by length, over rounds.

    A shared machine is slow for seconds at a time: each round runs every case, so that all of them see its fast times.
    """

    subject: Subject
    batches: Sequence[int]
    lengths: Sequence[int]
    _decode: dict[int, list[StepTime]] = field(default_factory=dict, init=False)
    _chunks: dict[int, list[list[StepTime]]] = field(default_factory=dict, init=False)

    def measure(self, least_s: float = ROUNDS_S) -> None:
        """Run rounds for so many seconds, and at least two of them."""
        end, rounds = time.monotonic() + least_s, 0
        while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.monotonic() < end):
            for batch in self.batches:
                run = self.subject.run(batch, PROMPT, OUTPUT)
                kept = [step for step in run if step.decodes and len(step.shape) == batch]
                self._decode.setdefault(batch, []).extend(kept)
            for length in self.lengths:
                run = self.subject.run(1, length, 1)
                self._chunks.setdefault(length, [[] for _ in run])
                for chunk, step in zip(self._chunks[length], run, strict=True):
                    chunk.append(step)
            rounds += 1

    def rows(self) -> Iterator[Prediction]:
        """TPOT of closed batches whose sequences all decode, and TTFT of one prompt, which is computed in chunks."""
        threads = self.subject.threads
        for batch, steps in self._decode.items():
            shapes = [step.shape for step in steps]
            measured = undisturbed_step(steps, threads)
            yield self.subject.row(f"{batch} decode", "TPOT", measured, shapes, len(shapes))
        for length, chunks in self._chunks.items():
            measured = sum(undisturbed_step(chunk, threads) for chunk in chunks)
            yield self.subject.row(
                f"prompt of {length}", "TTFT", measured, [chunk[0].shape for chunk in chunks], 1
            )
