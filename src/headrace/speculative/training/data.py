"""Documents with their hidden states, in batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.evaluation.documents import Document
from headrace.speculative.base_model import Ends

_MIXED = 256
"""Documents that are sorted by length, so that batches need little padding."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents of similar length, padded at the end.

    ids [B, n]. states [B, n, H]: after the final norm. lengths [B]. first [B]: the position whose state gives the first
    token to predict.
    """

    ids: Tensor
    states: Tensor
    lengths: Tensor
    first: Tensor

    def predicts(self, ahead: int, least: int = 0) -> Tensor:
        """[B, n]: whether the token `ahead` positions after each is one to predict, from position `least` on."""
        at = torch.arange(self.ids.shape[1])[None, :]
        return (at + ahead < self.lengths[:, None]) & (at >= self.first.clamp(min=least)[:, None])


def predicted(document: Document, ahead: int, least: int = 0) -> int:
    """At how many positions of a document `Batch.predicts` holds."""
    return max(0, len(document.ids) - ahead - max(document.start - 1, least))


class Corpus:
    """Documents and the hidden states of their tokens, [n, H] each."""

    def __init__(self, documents: Sequence[Document], states: Sequence[NDArray[np.float32]]) -> None:
        self.documents, self.states = documents, states

    @property
    def tokens(self) -> int:
        """Tokens to predict."""
        return sum(document.trained for document in self.documents)

    def batches(self, tokens: int, rng: random.Random) -> Iterator[Batch]:
        """All documents once, in batches of at most so many tokens with padding, or of one document."""
        order = list(range(len(self.documents)))
        rng.shuffle(order)
        batches: list[list[int]] = []
        for at in range(0, len(order), _MIXED):
            batch: list[int] = []
            for one in sorted(order[at : at + _MIXED], key=lambda number: len(self.documents[number].ids)):
                if batch and len(self.documents[one].ids) * (len(batch) + 1) > tokens:
                    batches.append(batch)
                    batch = []
                batch.append(one)
            batches.append(batch)
        rng.shuffle(batches)
        for batch in batches:
            yield self._batch(batch)

    def _batch(self, numbers: Sequence[int]) -> Batch:
        documents = [self.documents[number] for number in numbers]
        lengths = [len(document.ids) for document in documents]
        ids = torch.zeros((len(documents), max(lengths)), dtype=torch.int64)
        states = torch.zeros((*ids.shape, self.states[0].shape[1]))
        for row, (document, number) in enumerate(zip(documents, numbers, strict=True)):
            ids[row, : lengths[row]] = torch.tensor(document.ids)
            states[row, : lengths[row]] = torch.from_numpy(self.states[number])
        first = [max(1, document.start) - 1 for document in documents]
        return Batch(ids, states, torch.tensor(lengths), torch.tensor(first))


class Model:
    """The embedding and the head of the model that is drafted for, as tensors that are not trained."""

    def __init__(self, ends: Ends) -> None:
        self._embedding = torch.from_numpy(ends.embedding)
        self._head = torch.from_numpy(ends.head)
        self._bias = None if ends.bias is None else torch.from_numpy(ends.bias)
        self._ends = ends

    @property
    def hidden_size(self) -> int:
        return self._embedding.shape[1]

    def embed(self, ids: Tensor) -> Tensor:
        """[..., H]"""
        return self._embedding[ids] * self._ends.embedding_scale

    def logits(self, states: Tensor) -> Tensor:
        """[..., V] of states [..., H]."""
        logits = torch.nn.functional.linear(states, self._head, self._bias) * self._ends.logit_scale
        cap = self._ends.soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """Mean of KL(softmax(target) || softmax(logits)) over rows [N, V]; `target` gets no gradient."""
    wanted = torch.log_softmax(target.detach(), dim=-1)
    return torch.nn.functional.kl_div(
        torch.log_softmax(logits, dim=-1), wanted, reduction="batchmean", log_target=True
    )


def ranks(logits: Tensor, tokens: Tensor) -> Tensor:
    """[N]: how many tokens have a higher logit than tokens [N] have in logits [N, V]."""
    own = logits.gather(1, tokens[:, None])
    return (logits > own).sum(dim=1)
