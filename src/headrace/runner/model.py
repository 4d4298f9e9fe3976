"""Interfaces of a loaded model: one runs steps, the other samples from its logits.

`Logits` is whatever array type the two share, [R, V] float32: a numpy array on the native path, a tensor on torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.core.types import BlockCopy, TokenLogprobs
from headrace.runner.sampling.output import SampleOutput
from headrace.runner.sampling.state import SampleRow
from headrace.runner.sampling.token_masks import TokenMasks
from headrace.runner.step import Step

Logits = TypeVar("Logits")
ModelLogits = TypeVar("ModelLogits", covariant=True)
SamplerLogits = TypeVar("SamplerLogits", contravariant=True)


class StepModel(Protocol[ModelLogits]):
    """A model with its KV storage."""

    @property
    def vocab_size(self) -> int: ...

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole KV blocks, one after the other: a later copy may read what an earlier one wrote."""
        ...

    def forward(self, step: Step) -> ModelLogits:
        """Write the KV of a step's tokens and give logits [R, V] of `logits_rows`, valid until the next call."""
        ...

    def hidden(self) -> NDArray[np.float32]:
        """Hidden states [P, H] after the final norm, of the last step's `hidden_rows`."""
        ...

    def head(self, states: NDArray[np.float32]) -> ModelLogits:
        """Logits [N, V] of hidden states [N, H] after the final norm, of whatever origin."""
        ...

    def embed(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embeddings [N, H] of tokens, as the first layer reads them where it reads nothing else."""
        ...


class StateModel(Protocol):
    """Draft layers (`models.draft_layers`) with their KV storage."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """As `StepModel.copy_blocks`."""
        ...

    def forward(
        self, step: Step, states: NDArray[np.float32], embeddings: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Write the KV of a step's tokens and predict the states [P, H] of `step.hidden_rows`, if there are any.

        states [T, H]: those before each token. embeddings [T, H]: of the tokens. `step.logits_rows` is empty.
        """
        ...


class StepSampler(Protocol[SamplerLogits]):
    """Chooses tokens; see runner.sampling.sampler for the order of operations, which every sampler keeps."""

    def sample(
        self,
        logits: SamplerLogits,
        rows: Sequence[SampleRow],
        at: Sequence[int] | None = None,
        masks: TokenMasks | None = None,
        *,
        with_logprobs: bool = True,
    ) -> SampleOutput:
        """A token for each of `rows`; row i reads logits row at[i], or row i without `at`. Rows whose sequence has a
        grammar follow it where there are `masks`: drafts are sampled without. Log-probabilities are given where a
        sequence asks for them, unless `with_logprobs` is False."""
        ...

    def exclude(self, logits: SamplerLogits, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Change logits so that rows[i] never gives tokens[i]: the next sample is the second choice."""
        ...

    def score(
        self, logits: SamplerLogits, first: int, targets: Sequence[int], k: int
    ) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of known tokens: row first + i predicts targets[i], with the k likeliest tokens."""
        ...

    def row(self, logits: SamplerLogits, index: int) -> NDArray[np.float32]:
        """One row of logits [V], in memory that NumPy sees, valid as long as `logits`; not to be changed."""
        ...
