"""A sampler by way of another one: for those that change, note or time what it samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from headrace.core.types import TokenLogprobs
from headrace.runner.model import Logits, StepSampler


class ForwardingSampler(Generic[Logits]):
    """Everything of a `StepSampler` but `sample`."""

    def __init__(self, sampler: StepSampler[Logits]) -> None:
        self._sampler = sampler

    def row(self, logits: Logits, index: int) -> NDArray[np.float32]:
        return self._sampler.row(logits, index)

    def exclude(self, logits: Logits, rows: Sequence[int], tokens: Sequence[int]) -> None:
        self._sampler.exclude(logits, rows, tokens)

    def score(self, logits: Logits, first: int, targets: Sequence[int], k: int) -> tuple[TokenLogprobs, ...]:
        return self._sampler.score(logits, first, targets, k)
