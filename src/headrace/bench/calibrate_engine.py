"""What the engine adds to a step beside the model: scheduler, arrays of the step, sampling; measured on real steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from headrace.bench.calibrate_cases import undisturbed
from headrace.bench.op_tapes import OpTapes
from headrace.bench.profile import Profiled
from headrace.bench.sampling import sampling_times
from headrace.bench.step_times import StepTime, closed_batch
from headrace.build import EngineParts
from headrace.runner.sampling.native import NativeSampler
from headrace.sim.profile import SampleCost, StepCost

BATCHES = (1, 8, 32)
PROMPT, OUTPUT, LONG_PROMPT = 16, 12, 512
VOCABULARIES = (2048, 32000)
DRAWS = {"greedy": "greedy", "sampled": "T=0.7"}
"""Keys of `Profile.samples`, and settings of `bench.sampling`."""


@dataclass(slots=True)
class EngineRounds:
    """Steps of a small real model, by batch; those of prompts under 0."""

    parts: EngineParts
    tape: Profiled
    steps: dict[int, list[StepTime]] = field(default_factory=lambda: {count: [] for count in (*BATCHES, 0)})
    _seed: int = 10_000

    def sample(self) -> None:
        """One closed batch of each size, and one long prompt."""
        for batch in BATCHES:
            self._seed += 1
            run = list(closed_batch(self.parts, batch, PROMPT, OUTPUT, self._seed, self.tape))
            self.steps[batch] += [step for step in run if step.decodes and len(step.shape) == batch]
        self._seed += 1
        self.steps[0] += [
            step
            for step in closed_batch(self.parts, 1, LONG_PROMPT, 1, self._seed, self.tape)
            if not step.decodes
        ]

    def outside_s(self, batch: int) -> float:
        """Seconds of a step beside the ops."""
        return undisturbed([step.seconds - step.model_s for step in self.steps[batch]])

    def fit(self, draw: SampleCost) -> StepCost:
        vocab = self.parts.spec.vocab_size
        sizes = np.array(BATCHES, dtype=float)
        left = np.array(
            [
                self.outside_s(batch) - draw.call_s - batch * (draw.row_s + draw.element_s * vocab)
                for batch in BATCHES
            ]
        )
        weights = 1 / np.maximum(left, 1e-9)
        terms = np.stack([np.ones_like(sizes), sizes], axis=1) * weights[:, None]
        fixed, each = np.linalg.lstsq(terms, left * weights, rcond=None)[0]
        fixed, each = max(0.0, float(fixed)), max(0.0, float(each))
        tokens = max(step.shape[0].tokens for step in self.steps[0])
        drawn = draw.call_s + draw.row_s + draw.element_s * vocab
        more = max(0.0, self.outside_s(0) - fixed - each - drawn) / (tokens - 1)
        return StepCost(fixed, each, more)


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
