"""The training loop of both methods, and what it measures."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.speculative.heads import TOP
from headrace.speculative.training.data import Batch, Corpus

Progress = Callable[[int, int], None]
"""Called with the tokens trained on so far, and in all."""

_WARMUP = 0.05
_CLIP = 1.0


class Method(Protocol):
    """What is trained: a torch module."""

    method: str

    def parameters(self) -> Iterable[torch.nn.Parameter]: ...

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor: ...

    def ranks(self, batch: Batch) -> Tensor:
        """[N, heads]: how many tokens each head finds likelier than the true one."""
        ...

    def tensors(self) -> dict[str, NDArray[np.float32]]: ...

    def section(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class FitOptions:
    """rate: the highest learning rate. batch_tokens: in a step, padding included."""

    epochs: int
    rate: float
    batch_tokens: int
    seed: int


def fit(method: Method, corpus: Corpus, options: FitOptions, progress: Progress) -> None:
    """Train with AdamW; the rate rises, then falls along a cosine to zero. The same seed gives the same steps."""
    generator = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.AdamW(method.parameters(), lr=options.rate, betas=(0.9, 0.95), weight_decay=0.01)
    total, done = options.epochs * corpus.tokens, 0
    for epoch in range(options.epochs):
        for batch in corpus.batches(options.batch_tokens, random.Random(f"{options.seed}/{epoch}")):
            for group in optimizer.param_groups:
                group["lr"] = options.rate * _factor(done / total)
            loss = method.loss(batch, generator)
            if loss.requires_grad:
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(method.parameters(), _CLIP)
                optimizer.step()
            done += int(batch.predicts(1).sum())
            progress(done, total)


def _factor(share: float) -> float:
    """Of the rate, at a share of all tokens."""
    if share < _WARMUP:
        return max(share / _WARMUP, 0.05)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (share - _WARMUP) / (1.0 - _WARMUP))))


def measure(method: Method, corpus: Corpus, batch_tokens: int) -> NDArray[np.int64]:
    """Ranks [N, heads] of the true tokens of a corpus."""
    found = [method.ranks(batch).numpy() for batch in corpus.batches(batch_tokens, random.Random(0))]
    return np.concatenate(found)


def accuracies(ranks: NDArray[np.int64]) -> list[list[float]]:
    """For each head the shares of true tokens among its TOP likeliest."""
    return [[round(float((column < k).mean()), 4) for k in TOP] for column in ranks.T]
