"""An exception during sampling fails the sequences that raise it, not the whole step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Generic

from headrace.core.types import TokenLogprobs
from headrace.runner.model import Logits, StepSampler
from headrace.runner.sampling.output import NO_TOKEN, SampleOutput
from headrace.runner.sampling.state import SampleRow
from headrace.runner.sampling.token_masks import TokenMasks

NOT_SAMPLED = "the token after this sequence could not be chosen"
NOT_STARTED = "the sequence could not be started"

MAX_LOST_STEPS = 3
"""Consecutive steps without a sampled token after which the executor is considered faulty."""

_log = logging.getLogger(__name__)


class RowFaults(Generic[Logits]):
    """Samples with `sampler`; if that raises, samples again row by row. That gives the same tokens: a row's token
    depends on that row and its sequence alone, and sampling changes no state."""

    def __init__(self, sampler: StepSampler[Logits]) -> None:
        self._sampler = sampler
        self._lost_steps = 0

    def sample(
        self,
        logits: Logits,
        rows: Sequence[SampleRow],
        at: Sequence[int] | None = None,
        masks: TokenMasks | None = None,
    ) -> SampleOutput:
        """See `StepSampler.sample`. Raises the sampler's exception if the fault is not one row's: where each of several
        rows fails, or every row of a few steps."""
        try:
            samples = self._sampler.sample(logits, rows, at, masks)
        except Exception as error:
            _log.error("sampling failed, trying again row by row", exc_info=error)
            samples = self._apart(logits, rows, at, masks)
            lost = len(samples.errors) == len(rows)
            self._lost_steps = self._lost_steps + 1 if lost else 0
            if lost and (len(rows) > 1 or self._lost_steps > MAX_LOST_STEPS):
                raise
        else:
            self._lost_steps = 0
        return samples

    def _apart(
        self,
        logits: Logits,
        rows: Sequence[SampleRow],
        at: Sequence[int] | None,
        masks: TokenMasks | None,
    ) -> SampleOutput:
        tokens: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        errors: dict[int, str] = {}
        for index, row in enumerate(rows):
            where = [index if at is None else at[index]]
            mask = None if masks is None else TokenMasks(masks.bits, [masks.rows[index]])
            try:
                one = self._sampler.sample(logits, [row], where, mask)
            except Exception as error:
                _log.error("the token after one sequence could not be chosen", exc_info=error)
                one = SampleOutput([NO_TOKEN], None, {0: NOT_SAMPLED})
            tokens += one.tokens
            logprobs += one.logprobs or (None,)
            if one.errors:
                errors[index] = one.errors[0]
        return SampleOutput(tokens, tuple(logprobs) if any(logprobs) else None, errors)


def error_message(what: str, error: Exception) -> str:
    """The message for the caller about an exception in one sequence's work; details are in the log."""
    _log.error("%s", what, exc_info=error)
    return what
