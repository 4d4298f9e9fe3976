"""Medusa: heads on the model's last hidden state, each of which guesses one of the tokens to come (Cai et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.types import BlockCopy
from headrace.runner.drafting import Drafted
from headrace.runner.model import StepModel, StepSampler
from headrace.runner.sampling.output import NO_TOKEN
from headrace.runner.sampling.state import SampleRow
from headrace.speculative.heads import MedusaHeads
from headrace.speculative.method import NOTHING, Proposal


class MedusaMethod:
    """Drafts a token with each head in turn, drawn with the random numbers of its position; satisfies `method.Method`.

    Heads without a matrix of their own share the model's, for which all of their rows are one product.
    """

    free, needs_hidden, needs_states = False, True, False

    def __init__(
        self, heads: MedusaHeads, model: StepModel[Any], sampler: StepSampler[Any], name: str
    ) -> None:
        self.name = name
        self._heads, self._model, self._sampler = heads, model, sampler

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        found = [NOTHING] * len(sequences)
        going = [at for at, one in enumerate(sequences) if one.room and one.hidden is not None]
        if not going:
            return found
        count = min(len(self._heads.blocks), max(sequences[at].room for at in going))
        states = np.stack([hidden for at in going if (hidden := sequences[at].hidden) is not None])  # [S, H]
        logits = self._logits(states, count)
        drafts: dict[int, tuple[int, ...]] = {at: () for at in going}
        rows = {at: row for row, at in enumerate(going)}
        for head in range(count):
            going = [at for at in going if sequences[at].room > head]
            asked = [SampleRow(sequences[at].state, drafts[at]) for at in going]
            part, first = logits[head]
            tokens = self._sampler.sample(part, asked, [first + rows[at] for at in going]).tokens
            for at, token in zip(going, tokens, strict=True):
                if token != NO_TOKEN:
                    drafts[at] = (*drafts[at], token)
            going = [at for at in going if len(drafts[at]) == head + 1]
        for at, draft in drafts.items():
            found[at] = Proposal(draft)
        return found

    def _logits(self, states: NDArray[np.float32], count: int) -> list[tuple[Any, int]]:
        """Of each of the first `count` heads: logits, and which row of them is the first sequence's."""
        after = [self._after_blocks(head, states) for head in range(count)]
        own = self._heads.heads[:count]
        shared = [head for head in range(count) if own[head] is None]
        product = self._model.head(np.concatenate([after[head] for head in shared])) if shared else None
        found: list[tuple[Any, int]] = []
        for head in range(count):
            matrix = own[head]
            if matrix is None:
                found.append((product, shared.index(head) * len(states)))
            else:
                found.append((np.ascontiguousarray(after[head] @ matrix.T), 0))
        return found

    def _after_blocks(self, head: int, states: NDArray[np.float32]) -> NDArray[np.float32]:
        for weight, bias in self._heads.blocks[head]:
            inner = states @ weight.T + bias
            states = states + inner / (1.0 + np.exp(-inner))
        return states

    def pass_over(self, sequences: Sequence[Drafted]) -> None:
        """It reads nothing but the last state."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """There is no KV."""

    def release(self, request_id: int) -> None:
        """Nothing is kept of a sequence."""
