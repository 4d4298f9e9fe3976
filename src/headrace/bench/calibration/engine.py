"""What the engine adds to a step beside the model: scheduler, arrays of the step, sampling; measured on real steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.bench.calibration.cases import undisturbed
from headrace.bench.model.profile import Profiled
from headrace.bench.model.step_times import StepTime, closed_batch, undisturbed_step
from headrace.bench.native.op_tapes import OpTapes
from headrace.bench.native.sampling import sampling_times
from headrace.build import EngineParts
from headrace.runner.sampling.native import NativeSampler
from headrace.sim.profile import SampleCost, StepCost

BATCHES = (1, 8, 32)
PROMPT, OUTPUT, COLD_OUTPUT = 16, 20, 6
SKIPPED = 4
"""Steps that decode before the caches are as warm as they get."""
PROMPTS = (64, 512)
VOCABULARIES = (2048, 32000)
DRAWS = {"greedy": "greedy", "sampled": "T=0.7"}
"""Keys of `Profile.samples`, and settings of `bench.native.sampling`."""


@dataclass(slots=True)
class EngineRounds:
    """Steps of a small real model, by batch, and of its prompts, by tokens. cold: those before which `cold_bytes` were
    read, as a large model does in every step."""

    parts: EngineParts
    tape: Profiled
    cold_bytes: int
    steps: dict[int, list[StepTime]] = field(default_factory=lambda: {count: [] for count in BATCHES})
    prompts: dict[int, list[StepTime]] = field(default_factory=lambda: {count: [] for count in PROMPTS})
    cold: dict[int, list[StepTime]] = field(default_factory=lambda: {count: [] for count in BATCHES})
    _seed: int = 10_000
    _buffer: NDArray[np.int64] | None = None

    def sample(self) -> None:
        """One closed batch of each size, warm and cold, and one prompt of each length."""
        for batch in BATCHES:
            self._seed += 1
            run = list(closed_batch(self.parts, batch, PROMPT, OUTPUT, self._seed, self.tape))
            self.steps[batch] += decoding(run, batch)[SKIPPED:]
            self._seed += 1
            run = list(
                closed_batch(
                    self.parts, batch, PROMPT, COLD_OUTPUT, self._seed, self.tape, before=self._read_much
                )
            )
            self.cold[batch] += decoding(run, batch)
        for tokens in PROMPTS:
            self._seed += 1
            run = list(closed_batch(self.parts, 1, tokens, 1, self._seed, self.tape))
            self.prompts[tokens] += [step for step in run if not step.decodes]

    def _read_much(self) -> None:
        if self._buffer is None:
            self._buffer = np.ones(self.cold_bytes // 8, np.int64)
        self._buffer.sum()

    def fit(self, draw: SampleCost) -> StepCost:
        """What is left beside ops and sampling."""
        fixed, each = _line(
            {batch: self._outside_s(self.steps[batch]) - self._drawn(draw, batch) for batch in BATCHES}
        )
        short, long = PROMPTS
        begin = {
            tokens: self._outside_s(steps) - fixed - each - self._drawn(draw, 1)
            for tokens, steps in self.prompts.items()
        }
        more = max(0.0, begin[long] - begin[short]) / (long - short)
        first = max(0.0, begin[short] - more * (short - 1))
        cold_fixed, cold_each = _line(
            {batch: self._outside_s(self.cold[batch]) - self._drawn(draw, batch) for batch in BATCHES}
        )
        return StepCost(
            fixed,
            each,
            more,
            max(0.0, cold_fixed - fixed),
            max(0.0, cold_each - each),
            float(self.cold_bytes),
            first,
        )

    def _outside_s(self, steps: Sequence[StepTime]) -> float:
        return outside_s(steps, self.parts.resolved.num_threads)

    def _drawn(self, draw: SampleCost, rows: int) -> float:
        return draw.call_s + rows * (draw.row_s + draw.element_s * self.parts.spec.vocab_size)


def decoding(steps: Sequence[StepTime], batch: int) -> list[StepTime]:
    """Those that decode a token for each of `batch` sequences."""
    return [step for step in steps if step.decodes and len(step.shape) == batch]


def outside_s(steps: Sequence[StepTime], threads: int) -> float:
    """Seconds of a step beside the ops."""
    calls = sum(undisturbed(each) for each in zip(*(step.calls for step in steps), strict=True))
    return max(0.0, undisturbed_step(steps, threads) - calls)


def _line(seconds: Mapping[int, float]) -> tuple[float, float]:
    """(fixed, of each), both at least 0, by least squares of relative errors."""
    sizes, times = np.array(list(seconds), dtype=float), np.array(list(seconds.values()))
    weights = 1 / np.maximum(times, 1e-9)
    terms = np.stack([np.ones_like(sizes), sizes], axis=1) * weights[:, None]
    fixed, each = np.linalg.lstsq(terms, times * weights, rcond=None)[0]
    return max(0.0, float(fixed)), max(0.0, float(each))


def sample_costs(tapes: OpTapes, least_s: float) -> Iterator[tuple[str, SampleCost]]:
    """Costs of drawing tokens, by key of `Profile.samples`: from logits as a model has that hesitates."""
    found: dict[tuple[str, int, int], float] = {}
    for vocab in VOCABULARIES:
        sampler = NativeSampler(vocab, tapes.kernels, tapes.team)
        for rows in (1, 16):
            for spread, setting, seconds in sampling_times(sampler, rows, 5, least_s):
                if spread == "spread":
                    found[setting, vocab, rows] = undisturbed(seconds)
    small, large = VOCABULARIES
    for key, setting in DRAWS.items():
        per_row = {
            vocab: (found[setting, vocab, 16] - found[setting, vocab, 1]) / 15 for vocab in VOCABULARIES
        }
        element = max(0.0, per_row[large] - per_row[small]) / (large - small)
        row = max(0.0, per_row[small] - element * small)
        call = max(0.0, found[setting, small, 1] - row - element * small)
        yield key, SampleCost(call, row, element)
