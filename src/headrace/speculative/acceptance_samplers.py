"""Samplers that decide about drafts as the literature does, see `acceptance_rules`: only where it is asked for.

The executor keeps the drafts that equal what was sampled. So a decision is put into effect by changing the
samples: at each drafted token that stays, the sample before it becomes that token. Neither executor nor drafters know
which way is in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from headrace.runner.model import Logits, StepSampler
from headrace.runner.sampling.distribution import distribution
from headrace.runner.sampling.forwarding import ForwardingSampler
from headrace.runner.sampling.output import NO_TOKEN, SampleOutput
from headrace.runner.sampling.randomness import uniforms
from headrace.runner.sampling.state import SampleRow, SequenceState
from headrace.runner.sampling.token_masks import TokenMasks
from headrace.speculative.acceptance_rules import Accepted, reject, typical

Odds = NDArray[np.float64]

EXACT, REJECTION, TYPICAL = "exact", "rejection", "typical"

STREAM = 1
"""Of the uniform numbers here, beside stream 0, which drafts are drawn with."""


class DraftOdds:
    """The distributions that drafts were drawn from: of each sequence, the first draw for each place of its draft.

    Further choices for a place, which a tree has, are not drawn independently of the first.
    """

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[SequenceState, tuple[int, dict[int, tuple[int, Odds]]]] = (
            WeakKeyDictionary()
        )

    def put(self, row: SampleRow, token: int, odds: Odds) -> None:
        """`token` was drawn from odds [V] to follow what the row assumes."""
        output, found = self._held.get(row.state, (-1, {}))
        if output != row.state.num_output:
            output, found = row.state.num_output, {}
            self._held[row.state] = (output, found)
        found.setdefault(len(row.assumed), (token, odds))

    def has(self, row: SampleRow) -> bool:
        """Whether there was a draw to follow what the row assumes."""
        output, found = self._held.get(row.state, (-1, {}))
        return output == row.state.num_output and len(row.assumed) in found

    def get(self, row: SampleRow) -> Odds | None:
        """Odds [V] of the row's last draft, None where it is no such draw."""
        output, found = self._held.get(row.state, (-1, {}))
        token, odds = found.get(len(row.assumed) - 1, (NO_TOKEN, None))
        return odds if output == row.state.num_output and token == row.assumed[-1] else None


class DraftSampler(ForwardingSampler[Logits]):
    """Draws drafts as the sampler that it is given does, and notes what each was drawn from."""

    def __init__(self, sampler: StepSampler[Logits], odds: DraftOdds) -> None:
        super().__init__(sampler)
        self._odds = odds

    def sample(
        self,
        logits: Logits,
        rows: Sequence[SampleRow],
        at: Sequence[int] | None = None,
        masks: TokenMasks | None = None,
        *,
        with_logprobs: bool = True,
    ) -> SampleOutput:
        """See `StepSampler.sample`."""
        samples = self._sampler.sample(logits, rows, at, masks, with_logprobs=with_logprobs)
        for index, (row, token) in enumerate(zip(rows, samples.tokens, strict=True)):
            if token != NO_TOKEN and not row.state.params.greedy and not self._odds.has(row):
                own = self.row(logits, index if at is None else at[index])
                self._odds.put(row, token, distribution(own, row, _mask(masks, index)))
        return samples


class AcceptingSampler(ForwardingSampler[Logits]):
    """Samples as the sampler that it is given does, and where a sequence has drafts, decides which of them stay.

    With `odds`, by rejection sampling: tokens are distributed as without drafts. Without, by typical acceptance: they
    are not. Sequences at temperature 0 are left as they are. Log-probabilities are those of the tokens that stay.
    """

    def __init__(self, sampler: StepSampler[Logits], odds: DraftOdds | None) -> None:
        super().__init__(sampler)
        self._odds = odds

    def sample(
        self,
        logits: Logits,
        rows: Sequence[SampleRow],
        at: Sequence[int] | None = None,
        masks: TokenMasks | None = None,
        *,
        with_logprobs: bool = True,
    ) -> SampleOutput:
        """See `StepSampler.sample`. Rows of a sequence are adjacent: after its output, then after each draft."""
        samples = self._sampler.sample(logits, rows, at, masks, with_logprobs=with_logprobs)
        where = range(len(rows)) if at is None else at
        chosen: dict[int, int] = {}
        first = 0
        while first < len(rows):
            end = first + 1
            while end < len(rows) and rows[end].state is rows[first].state:
                end += 1
            drafted = end - first > 1 and samples.tokens[first] != NO_TOKEN
            if drafted and not rows[first].state.params.greedy:
                target: list[NDArray[np.float64]] = []
                for index in range(first, end):
                    if samples.tokens[index] == NO_TOKEN:  # the sequence fails if the drafts before it stay
                        target.append(np.full_like(target[0], 1 / len(target[0])))
                    else:
                        own = self.row(logits, where[index])
                        target.append(distribution(own, rows[index], _mask(masks, index)))
                for node, token in self._decide(rows[first:end], np.stack(target)).items():
                    if samples.tokens[first + node] not in (NO_TOKEN, token):
                        chosen[first + node] = token
            first = end
        return self._with(samples, chosen, logits, rows, where) if chosen else samples

    def _decide(self, rows: Sequence[SampleRow], target: NDArray[np.float64]) -> dict[int, int]:
        """The tokens after the first of a sequence's rows, and after those of the drafts that stay, by row."""
        state = rows[0].state
        paths = {row.assumed: index for index, row in enumerate(rows)}
        tokens = [row.assumed[-1] for row in rows[1:]]
        parents = [paths[row.assumed[:-1]] - 1 for row in rows[1:]]
        count = len(tokens) if self._odds is not None else 0
        seeds, positions = [state.seed], [state.num_output]
        numbers = [float(uniforms(seeds, positions, STREAM, index)[0]) for index in range(count + 1)]
        if self._odds is None:
            got = typical(target, tokens, parents, numbers[0])
        else:
            draft = np.zeros((len(tokens), target.shape[1]))
            for node, row in enumerate(rows[1:]):
                odds = self._odds.get(row) if parents.index(parents[node]) == node else None
                if (
                    odds is None
                ):  # whatever it was taken from: all odds on it are right, but rejected more often
                    draft[node, tokens[node]] = 1.0
                else:
                    draft[node] = odds
            got = reject(target, draft, tokens, parents, numbers)
        return _tokens_by_row(got, tokens)

    def _with(
        self,
        samples: SampleOutput,
        chosen: dict[int, int],
        logits: Logits,
        rows: Sequence[SampleRow],
        where: Sequence[int],
    ) -> SampleOutput:
        """The samples with other tokens, and their log-probabilities."""
        tokens = [chosen.get(index, token) for index, token in enumerate(samples.tokens)]
        logprobs = None if samples.logprobs is None else list(samples.logprobs)
        for index, token in chosen.items():
            count = rows[index].state.params.logprobs
            if logprobs is not None and count is not None:
                (logprobs[index],) = self.score(logits, where[index], [token], count)
        return replace(samples, tokens=tokens, logprobs=None if logprobs is None else tuple(logprobs))


def samplers(
    acceptance: str, sampler: StepSampler[Logits]
) -> tuple[StepSampler[Logits], StepSampler[Logits]]:
    """Samplers for the model, and for what drafts, with `acceptance` as in EngineConfig."""
    if acceptance == REJECTION:
        odds = DraftOdds()
        return AcceptingSampler(sampler, odds), DraftSampler(sampler, odds)
    return (AcceptingSampler(sampler, None) if acceptance == TYPICAL else sampler), sampler


def _tokens_by_row(got: Accepted, tokens: Sequence[int]) -> dict[int, int]:
    rows = [0, *(node + 1 for node in got.path)]
    return dict(zip(rows, [*(tokens[node] for node in got.path), got.token], strict=True))


def _mask(masks: TokenMasks | None, index: int) -> NDArray[np.uint32] | None:
    row = -1 if masks is None else masks.rows[index]
    return None if masks is None or row < 0 else masks.bits[row]
