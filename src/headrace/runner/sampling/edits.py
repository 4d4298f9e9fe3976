"""Changes to logits before a draw, in this order: a grammar's mask, allowed and banned tokens, bad words, min_tokens,
logit_bias and penalties."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.runner.sampling.bad_words import BadWords
from headrace.runner.sampling.state import SampleRow, SequenceState

Ids = NDArray[np.int64]
Bits = NDArray[np.uint32]


class Edits:
    """Edits of W rows of logits, as flat indices row * V + token.

    Edits that depend on the parameters alone are built once; those that depend on the output so far are read from the
    rows at each call. Token ids are inside the vocabulary, which SequenceState has checked, so no edit can
    reach another row.
    """

    def __init__(self, states: Sequence[SequenceState], vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        allowed_rows: list[int] = []
        allowed: list[Ids] = []
        banned: list[Ids] = []
        biased: list[Ids] = []
        biases: list[float] = []
        self._min_tokens: list[tuple[int, int, Ids]] = []  # row, min_tokens, flat indices of its stop ids
        self._watched: list[tuple[int, BadWords]] = []  # row, its bad words of several tokens
        self._penalised: list[tuple[int, float]] = []  # row, repetition penalty
        for row, state in enumerate(states):
            params, base = state.params, row * vocab_size
            if params.allowed_token_ids is not None:
                allowed_rows.append(row)
                allowed.append(base + np.array(params.allowed_token_ids, dtype=np.int64))
            if state.banned:
                banned.append(base + np.array(state.banned, dtype=np.int64))
            if state.bad_words is not None:
                self._watched.append((row, state.bad_words))
            if params.logit_bias:
                biased.append(base + np.array(list(params.logit_bias), dtype=np.int64))
                biases.extend(params.logit_bias.values())
            if state.min_tokens and len(state.stop_ids):
                self._min_tokens.append((row, state.min_tokens, base + state.stop_ids))
            if state.seen is not None:
                self._penalised.append((row, params.repetition_penalty))
        self._matched = [row for row, state in enumerate(states) if state.matcher is not None]
        self._allowed_rows = torch.tensor(allowed_rows, dtype=torch.int64, device=device)
        self._allowed = self._index(allowed)
        self._banned = self._index(banned)
        self._biased = self._index(biased)
        self._biases = torch.tensor(biases, dtype=torch.float32, device=device)

    @property
    def empty(self) -> bool:
        """True when no row is ever edited."""
        fixed = self._allowed is None and self._banned is None and self._biased is None
        follow = self._min_tokens or self._penalised or self._watched or self._matched
        return fixed and not follow

    def apply(self, work: Tensor, rows: Sequence[SampleRow], masks: Bits | None = None) -> None:
        """Edit the logits work [W, V] float32 of `rows` in place; masks [M, words] are of rows with grammars.

        Without them no grammar is followed: so drafts are sampled.
        """
        flat = work.view(-1)  # [W * V]
        if self._matched and masks is not None:
            allowed = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, : self._vocab_size]
            # A model may have logits for more ids than its masks know.
            known = np.zeros((len(masks), self._vocab_size), np.bool_)
            known[:, : allowed.shape[1]] = allowed
            index = torch.tensor(self._matched, dtype=torch.int64, device=self._device)
            refused = torch.from_numpy(~known).to(self._device)  # [M, V]
            work.index_copy_(0, index, work.index_select(0, index).masked_fill_(refused, -math.inf))
        if self._allowed is not None:
            kept = flat.index_select(0, self._allowed)
            work.index_fill_(0, self._allowed_rows, -math.inf)
            flat.index_copy_(0, self._allowed, kept)
        if self._banned is not None:
            flat.index_fill_(0, self._banned, -math.inf)
        for row, words in self._watched:
            completing = words.banned(rows[row].assumed)
            if completing:
                work[row, torch.tensor(completing, dtype=torch.int64, device=self._device)] = -math.inf
        waiting = self._index([ids for row, least, ids in self._min_tokens if rows[row].position < least])
        if waiting is not None:
            flat.index_fill_(0, waiting, -math.inf)
        if self._biased is not None:
            flat.index_add_(0, self._biased, self._biases)
        if self._penalised:
            self._penalise(flat, rows)

    def _penalise(self, flat: Tensor, rows: Sequence[SampleRow]) -> None:
        indices: list[Ids] = []
        amounts: list[NDArray[np.float32]] = []
        for row, _ in self._penalised:
            seen = rows[row].state.seen
            assert seen is not None
            ids, subtracted = seen.entries(rows[row].assumed)
            indices.append(ids + row * self._vocab_size)
            amounts.append(subtracted)
        index = self._index(indices)
        if index is None:
            return
        factors = np.array([penalty for _, penalty in self._penalised], dtype=np.float32)
        repetition = self._tensor(np.repeat(factors, [len(ids) for ids in indices]))  # [E]
        logits = flat.index_select(0, index)  # [E]
        logits = torch.where(logits > 0, logits / repetition, logits * repetition)
        flat.index_copy_(0, index, logits.sub_(self._tensor(np.concatenate(amounts))))

    def _index(self, parts: list[Ids]) -> Tensor | None:
        """The parts joined on the device, or None when nothing is in them."""
        joined = np.concatenate(parts) if parts else None
        return None if joined is None or not len(joined) else self._tensor(joined)

    def _tensor(self, array: NDArray[np.int64] | NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
