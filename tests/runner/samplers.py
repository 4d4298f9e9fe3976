"""The samplers under test, with the interface of the torch one: logits as tensors, states by `start`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from headrace.core.types import NewSequence
from headrace.runner.sampling.output import SampleOutput
from headrace.runner.sampling.sampler import Sampler
from headrace.runner.sampling.state import SampleRow, SequenceState
from headrace.runner.sampling.token_masks import TokenMasks

try:
    from headrace import _native
    from headrace.runner.sampling.native import NativeSampler
except ImportError:
    _native = None


class OnTensors:
    """The native sampler, given its logits as tensors."""

    def __init__(self, vocab_size: int, kernels: str, threads: int) -> None:
        self.vocab_size = vocab_size
        self._inner = NativeSampler(vocab_size, _native.Kernels(kernels), _native.Team(threads))

    def start(self, new: NewSequence) -> SequenceState:
        return SequenceState(new, self.vocab_size)

    def sample(
        self, logits: torch.Tensor, rows: Sequence[SampleRow], at: Any = None, masks: TokenMasks | None = None
    ) -> SampleOutput:
        return self._inner.sample(logits.numpy(), rows, at, masks)

    def score(self, logits: torch.Tensor, first: int, targets: Sequence[int], k: int) -> Any:
        return self._inner.score(logits.numpy(), first, targets, k)


SAMPLERS: dict[str, Callable[[int], Any]] = {"torch": Sampler}
if _native is not None:
    best = _native.available_kernels()[0]
    SAMPLERS[best] = lambda vocab_size: OnTensors(vocab_size, best, threads=2)
    SAMPLERS["portable"] = lambda vocab_size: OnTensors(vocab_size, "portable", threads=1)
