"""The sampler of the native path: the operations of `sampler` in C++ (csrc/sampler.cpp), on numpy logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.core.types import TokenLogprobs
from headrace.runner.sampling.output import (
    INFINITE_LOGITS,
    NAN_LOGITS,
    NO_LOGITS,
    NO_TOKEN,
    NOTHING_LEFT,
    SampleOutput,
)
from headrace.runner.sampling.state import SampleRow, SequenceState
from headrace.runner.sampling.token_masks import TokenMasks

_SEED_MASK = 2**64 - 1
_FAULTS = {1: NAN_LOGITS, 2: INFINITE_LOGITS, 3: NO_LOGITS, 4: NOTHING_LEFT}
"""By the values of Fault in csrc/sampler.h."""


class NativeSampler:
    """Samples from rows of logits [R, V] float32 in memory; a `runner.model.StepSampler`.

    Keeps no state of sequences: the caller does. Rows are divided among the team's threads. A row's token
    depends on that row and its sequence alone, bit for bit, and is the same on every set of kernels.
    """

    def __init__(self, vocab_size: int, kernels: _native.Kernels, team: _native.Team) -> None:
        self.vocab_size = vocab_size
        self._sampler = _native.Sampler(kernels, team, vocab_size)

    def sample(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[SampleRow],
        at: Sequence[int] | None = None,
        masks: TokenMasks | None = None,
        *,
        with_logprobs: bool = True,
    ) -> SampleOutput:
        """A token for each of `rows`, the same as those of `sampler.Sampler.sample`.

        Raises ValueError where the shape or type of the logits is wrong.
        """
        count = len(rows) if at is None else len(logits)
        if logits.shape != (count, self.vocab_size) or logits.dtype != np.float32:
            expected = f"{(count, self.vocab_size)} float32"
            raise ValueError(f"logits are {logits.shape} {logits.dtype}, expected {expected}")
        if not rows:
            return SampleOutput([])
        rules: list[_native.SampleRules] = []
        positions: list[int] = []
        seen: list[tuple[NDArray[np.int64], NDArray[np.float32]] | None] = []
        scored = False
        for state, assumed in rows:
            rules.append(state.rules or self._rules(state))
            positions.append(state.num_output + len(assumed))
            if state.follows_output:
                seen += [None] * (len(rules) - 1 - len(seen))
                seen.append(state.subtracted(assumed))
            scored = scored or state.params.logprobs is not None
        if seen:
            seen += [None] * (len(rules) - len(seen))
        held = () if masks is None else ((masks.bits, masks.rows),)
        tokens, faults = self._sampler.sample(logits, rules, positions, seen, at, *held)
        errors = {}
        for row, fault in faults:
            tokens[row] = NO_TOKEN
            errors[row] = _FAULTS[fault]
        return SampleOutput(
            tokens, self._logprobs(logits, rows, tokens, at) if scored and with_logprobs else None, errors
        )

    def exclude(self, logits: NDArray[np.float32], rows: Sequence[int], tokens: Sequence[int]) -> None:
        """See `runner.model.StepSampler.exclude`."""
        logits[rows, tokens] = -np.inf

    def score(
        self, logits: NDArray[np.float32], first: int, targets: Sequence[int], k: int
    ) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of known tokens, see `runner.model.StepSampler.score`."""
        at = list(range(first, first + len(targets)))
        found = self._sampler.logprobs(logits, at, list(targets), [k] * len(targets))
        return tuple(TokenLogprobs(*own, tuple(top)) for own, *top in found)

    def row(self, logits: NDArray[np.float32], index: int) -> NDArray[np.float32]:
        """See `runner.model.StepSampler.row`."""
        own: NDArray[np.float32] = logits[index]
        return own

    def _logprobs(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[SampleRow],
        tokens: Sequence[int],
        at: Sequence[int] | None,
    ) -> tuple[TokenLogprobs | None, ...]:
        counts = [row.state.params.logprobs for row in rows]
        asked = [row for row, count in enumerate(counts) if count is not None and tokens[row] != NO_TOKEN]
        where = asked if at is None else [at[row] for row in asked]
        found = self._sampler.logprobs(
            logits, where, [tokens[row] for row in asked], [counts[row] or 0 for row in asked]
        )
        values: list[TokenLogprobs | None] = [None] * len(rows)
        for row, (own, *top) in zip(asked, found, strict=True):
            values[row] = TokenLogprobs(*own, tuple(top))
        return tuple(values)

    def _rules(self, state: SequenceState) -> _native.SampleRules:
        """The sequence's parameters in the sampler's form, created at its first token."""
        params = state.params
        bias = params.logit_bias or {}
        state.rules = _native.SampleRules(
            self.vocab_size,
            temperature=params.temperature,
            top_k=max(0, params.top_k),
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            seed=state.seed & _SEED_MASK,
            min_tokens=state.min_tokens,
            stop_ids=state.stop_ids.tolist(),
            allowed=None if params.allowed_token_ids is None else list(params.allowed_token_ids),
            banned=list(state.banned),
            bias_ids=list(bias),
            biases=list(bias.values()),
        )
        return state.rules
