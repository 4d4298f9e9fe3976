"""Accumulates the hidden states of a prompt's tokens into one vector, or collects them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.types import Pooling, SeqSlice, SliceResult

NOT_FINITE = "the model computed hidden states that are not finite numbers for this sequence"


class Pool:
    """The unfinished vector of one sequence. A prompt may come in any number of slices, in rising position.

    The mean is summed in float64, one position after the other, so that it does not depend on how the prompt was cut.
    """

    def __init__(self, kind: Pooling, num_prompt: int) -> None:
        self._kind = kind
        self._num_prompt = num_prompt
        self._sum: NDArray[np.float64] | None = None  # [H]
        self._all: list[NDArray[np.float32]] = []  # [n, H] each, with Pooling.ALL

    def tokens_of(self, work: SeqSlice) -> range:
        """The slice's tokens whose hidden states are needed."""
        count = len(work.tokens)
        if self._kind is not Pooling.LAST:
            return range(count)
        return range(count - 1, count) if self.ends_with(work) else range(0)

    def ends_with(self, work: SeqSlice) -> bool:
        """The slice holds the prompt's last token."""
        return work.start + len(work.tokens) >= self._num_prompt

    def add(self, states: NDArray[np.float32]) -> None:
        """Hidden states [n, H] of the next positions."""
        if self._kind is Pooling.ALL:
            self._all.append(states.astype("<f4"))
            return
        if self._sum is None:
            self._sum = np.zeros(states.shape[1], dtype=np.float64)
        for state in states:  # a sum over the axis could add in pairs
            self._sum += state

    def vector(self) -> NDArray[np.float32]:
        """The finished vector [H]; with Pooling.ALL the states [num_prompt, H]."""
        if self._kind is Pooling.ALL:
            return np.concatenate(self._all)
        assert self._sum is not None
        count = self._num_prompt if self._kind is Pooling.MEAN else 1
        return (self._sum / count).astype("<f4")


def pooled_rows(slices: Sequence[SeqSlice], pools: Sequence[Pool | None]) -> list[int]:
    """The tokens of a packed batch whose hidden states the pools of its slices need."""
    rows: list[int] = []
    offset = 0
    for work, pool in zip(slices, pools, strict=True):
        if pool is not None:
            rows += (offset + token for token in pool.tokens_of(work))
        offset += len(work.tokens)
    return rows


def add_states(
    slices: Sequence[SeqSlice], pools: Sequence[Pool | None], states: NDArray[np.float32]
) -> dict[int, SliceResult]:
    """Add the hidden states of `pooled_rows` to their pools; gives the results of the sequences that are finished."""
    results: dict[int, SliceResult] = {}
    at = 0
    for work, pool in zip(slices, pools, strict=True):
        if pool is None:
            continue
        count = len(pool.tokens_of(work))
        pool.add(states[at : at + count])
        at += count
        if pool.ends_with(work):
            vector = pool.vector()
            finite = bool(np.isfinite(vector).all())
            results[work.request_id] = SliceResult(
                work.request_id,
                pooled=vector.tobytes() if finite else None,
                error=None if finite else NOT_FINITE,
            )
    return results
