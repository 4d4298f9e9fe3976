"""The sampler: rows of logits in, one token a row out.

Order of operations, as in vLLM: log-probabilities from the untouched logits; the mask of a grammar; allowed and
banned tokens; bad words; min_tokens; logit_bias; repetition, then frequency and presence penalties; temperature; min_p;
top_k; top_p; the largest sum of what is left and Gumbel noise, a function of (seed, output position, token) (see
`randomness`). A row's token depends on that row and its sequence alone, not on the rest of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.core.types import NewSequence, TokenLogprobs
from headrace.runner.sampling.draw import Noise, draw_sorted, draw_whole
from headrace.runner.sampling.logprobs import prompt_logprobs, token_logprobs
from headrace.runner.sampling.output import INFINITE_LOGITS, NO_TOKEN, NOTHING_LEFT, SampleOutput, reject
from headrace.runner.sampling.plan import SamplingPlan
from headrace.runner.sampling.state import Draw, SampleRow, SequenceState
from headrace.runner.sampling.token_masks import TokenMasks


class Sampler:
    """Samples from rows of logits [R, V] on one device.

    Keeps only a plan for the rows of the last call, which it reuses while the batch stays the same. The caller
    holds the state of every sequence: `start` creates it, and its `extend` records emitted tokens.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._plan: SamplingPlan | None = None

    def start(self, new: NewSequence) -> SequenceState:
        """State of a sequence that is new, or resumed after preemption with its output in `new.tokens`.

        Raises InvalidParams where its parameters name token ids outside the vocabulary.
        """
        return SequenceState(new, self.vocab_size)

    def sample(
        self,
        logits: Tensor,
        rows: Sequence[SampleRow],
        at: Sequence[int] | None = None,
        masks: TokenMasks | None = None,
        *,
        with_logprobs: bool = True,
    ) -> SampleOutput:
        """Choose a token for each row of logits [R, V] float32, or for those of them in `at`; they are not changed.

        A row whose sequence has a grammar follows it where there are `masks`. Minus infinity marks a token that cannot
        occur. A row with NaN or plus infinity, or without any token left, fails alone, see SampleOutput. Raises
        ValueError where the shape or type of the logits is wrong.
        """
        if at is not None:
            logits = logits[torch.tensor(at, dtype=torch.int64, device=logits.device)]
        if logits.shape != (len(rows), self.vocab_size) or logits.dtype != torch.float32:
            raise ValueError(
                f"logits are {tuple(logits.shape)} {logits.dtype}, "
                f"expected {(len(rows), self.vocab_size)} {torch.float32}"
            )
        if not rows:
            return SampleOutput([])
        plan = self._plan_for(rows)
        if plan.plain:
            tokens, highest = _argmax(logits)
            return SampleOutput(tokens, None, reject(tokens, highest))
        return self._sample(logits.contiguous(), rows, plan, masks, with_logprobs)

    @torch.inference_mode()
    def exclude(self, logits: Tensor, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """See `runner.model.StepSampler.exclude`."""
        logits[list(rows), list(tokens)] = -math.inf

    def score(self, logits: Tensor, first: int, targets: Sequence[int], k: int) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of `targets`: row first + i predicts targets[i]. See `token_logprobs`."""
        return prompt_logprobs(logits[first : first + len(targets)], targets, k)

    def row(self, logits: Tensor, index: int) -> NDArray[np.float32]:
        """See `runner.model.StepSampler.row`."""
        own: NDArray[np.float32] = logits[index].cpu().numpy()
        return own

    def _plan_for(self, rows: Sequence[SampleRow]) -> SamplingPlan:
        states = [row.state for row in rows]
        if self._plan is None or self._plan.states != states:
            self._plan = SamplingPlan(states, self.vocab_size, self.device)
        return self._plan

    def _sample(
        self,
        logits: Tensor,
        rows: Sequence[SampleRow],
        plan: SamplingPlan,
        masks: TokenMasks | None,
        with_logprobs: bool,
    ) -> SampleOutput:
        highest: list[float] = logits.amax(-1).tolist()  # [R]
        produced: list[int] = []
        if plan.greedy_index is not None:
            produced += _argmax(logits.index_select(0, plan.greedy_index))[0]
        left: list[float] = []  # [W]: highest logits after edits, if there are edits
        if plan.work:
            work = logits if plan.work_index is None else logits.index_select(0, plan.work_index)  # [W, V]
            chosen = [rows[row] for row in plan.work]
            if plan.edits is not None:
                plan.edits.apply(work, chosen, _picked(masks, plan.work))
                left = work.amax(-1).tolist()
            produced += self._choose(work, chosen, plan)
        tokens = [NO_TOKEN] * len(rows)
        for row, token in zip(plan.order, produced, strict=True):
            tokens[row] = token
        errors = reject(tokens, highest)
        for row, value in zip(plan.work if left else (), left, strict=True):
            if row not in errors and not math.isfinite(value):
                tokens[row] = NO_TOKEN
                errors[row] = NOTHING_LEFT if value == -math.inf else INFINITE_LOGITS
        logprobs = self._logprobs(logits, tokens, plan) if with_logprobs else None
        return SampleOutput(tokens, logprobs, errors)

    def _choose(self, work: Tensor, chosen: Sequence[SampleRow], plan: SamplingPlan) -> list[int]:
        """Tokens of the work rows [W, V], in their order."""
        produced: list[int] = []
        if plan.num_edited:
            produced += _argmax(work[: plan.num_edited])[0]
        if plan.groups:
            positions = [row.position for row in chosen[plan.num_edited :]]
            noise = Noise.of(plan.seeds, positions, self.device)
            parts = []
            for group in plan.groups:
                part = work[group.start : group.stop]
                ours = noise.take(slice(group.start - plan.num_edited, group.stop - plan.num_edited))
                if group.draw is Draw.WHOLE:
                    parts.append(draw_whole(part, group.filters, ours))
                else:
                    parts.append(draw_sorted(part, group.filters, ours, group.width))
            produced += torch.cat(parts).tolist()
        return produced

    def _logprobs(
        self, logits: Tensor, tokens: list[int], plan: SamplingPlan
    ) -> tuple[TokenLogprobs | None, ...] | None:
        if not plan.logprob_rows:
            return None
        asked = [row for row in plan.logprob_rows if tokens[row] != NO_TOKEN]
        found: list[TokenLogprobs | None] = [None] * len(tokens)
        if asked:
            picked = logits.index_select(0, torch.tensor(asked, device=self.device))  # [A, V]
            counts = [plan.states[row].params.logprobs or 0 for row in asked]
            values = token_logprobs(picked, [tokens[row] for row in asked], counts)
            for row, value in zip(asked, values, strict=True):
                found[row] = value
        return tuple(found)


def _picked(masks: TokenMasks | None, rows: Sequence[int]) -> NDArray[np.uint32] | None:
    """The masks of those of the rows that have one, in their order."""
    if masks is None:
        return None
    return masks.bits[[masks.rows[row] for row in rows if masks.rows[row] >= 0]]


def _argmax(logits: Tensor) -> tuple[list[int], list[float]]:
    """Ids [R] of the highest logits, the lowest id among equals, and the values. NaN counts as highest."""
    return _argmax_numpy(logits) if logits.device.type == "cpu" else _argmax_torch(logits)


def _argmax_numpy(logits: Tensor) -> tuple[list[int], list[float]]:
    array = logits.numpy()  # one vectorised pass, on a CPU about ten times as fast as torch's
    best = array.argmax(-1)
    return best.tolist(), array[np.arange(len(best)), best].tolist()


def _argmax_torch(logits: Tensor) -> tuple[list[int], list[float]]:
    highest = logits.max(-1)
    return highest.indices.tolist(), highest.values.tolist()
