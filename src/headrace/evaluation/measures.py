"""Perplexity, KL divergence and agreement, from hidden states and the model's own head.

Logits of a whole text are never held: rows go through the head a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.evaluation.documents import Document

Floats = NDArray[np.float32]
Shown = Callable[[int, int], None]
"""Called with tokens done and tokens in all."""

ROWS_BYTES = 64 << 20
"""Logits of so many bytes are held at once, for each model."""
_BATCH_TOKENS = 16_384
"""Tokens whose hidden states are read at once."""


class Judged(Protocol):
    """A model as it runs."""

    @property
    def vocab_size(self) -> int: ...

    def states(self, documents: Sequence[Sequence[int]]) -> list[Floats]:
        """Hidden states [n, H] of each document, after the final norm."""
        ...

    def logits(self, states: Floats) -> Floats:
        """[n, V] of states [n, H]."""
        ...

    def write(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[int, ...]]:
        """The greedy continuation of each prompt, exactly so many tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log-likelihood, natural logarithm, over `tokens`; error: standard error of that mean."""

    tokens: int
    mean_nll: float
    error: float

    @property
    def value(self) -> float:
        return float(np.exp(self.mean_nll))


@dataclass(frozen=True, slots=True)
class Divergence:
    """A model beside a reference, over the positions of the same texts.

    mean, median, p99, most: KL(reference || model) in nats. top_1: share of positions at which both have the same
    likeliest token. probability_rms: root mean square of the difference in the probability of the text's own token.
    increase_error: standard error of `perplexity_increase`, from the differences in loss of the same tokens.
    """

    model: Perplexity
    reference: Perplexity
    mean: float
    error: float
    median: float
    p99: float
    most: float
    top_1: float
    probability_rms: float
    increase_error: float

    @property
    def perplexity_increase(self) -> float:
        """0.01 is one per cent more than the reference."""
        return self.model.value / self.reference.value - 1.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Greedy answers to the same prompts, beside those of a reference.

    equal: share of answers that are the same to their end. prefix: mean share of an answer before the first token that
    differs. tokens: of an answer.
    """

    answers: int
    tokens: int
    equal: float
    prefix: float


def perplexity(model: Judged, documents: Sequence[Document], shown: Shown | None = None) -> Perplexity:
    """Of the text that the documents predict. ValueError where there is none."""
    found = [
        -_own(logits, targets)
        for ((logits,), targets) in _rows([model], documents, shown)
    ]  # fmt: skip
    return _perplexity(np.concatenate(found) if found else np.empty(0))


def divergence(
    model: Judged, reference: Judged, documents: Sequence[Document], shown: Shown | None = None
) -> Divergence:
    """Of `model` from `reference`. ValueError where their vocabularies differ, or where there is nothing to predict."""
    if model.vocab_size != reference.vocab_size:
        raise ValueError(f"{model.vocab_size} tokens cannot be compared with {reference.vocab_size}")
    distances, same, ours, theirs = [], [], [], []
    for (one, other), targets in _rows([model, reference], documents, shown):
        same.append(one.argmax(axis=1) == other.argmax(axis=1))
        distances.append(_divergences(one, other))
        ours.append(_own(one, targets))
        theirs.append(_own(other, targets))
    if not distances:
        raise ValueError("there is nothing to predict")
    distance, mine, their = np.concatenate(distances), np.concatenate(ours), np.concatenate(theirs)
    median, p99 = np.quantile(distance, [0.5, 0.99])
    return Divergence(
        model=_perplexity(-mine),
        reference=_perplexity(-their),
        mean=float(distance.mean()),
        error=_error(distance),
        median=float(median),
        p99=float(p99),
        most=float(distance.max()),
        top_1=float(np.concatenate(same).mean()),
        probability_rms=float(np.sqrt(np.mean((np.exp(mine) - np.exp(their)) ** 2))),
        increase_error=_error(their - mine) * float(np.exp((their - mine).mean())),
    )


def agreement(model: Judged, reference: Judged, prompts: Sequence[Sequence[int]], tokens: int) -> Agreement:
    """Of greedy answers of so many tokens each, which no end-of-sequence token cuts."""
    ours, theirs = model.write(prompts, tokens), reference.write(prompts, tokens)
    prefixes = []
    for one, other in zip(ours, theirs, strict=True):
        equal = [a == b for a, b in zip(one, other, strict=True)]
        prefixes.append(equal.index(False) if False in equal else tokens)
    shares = np.array(prefixes) / tokens
    return Agreement(len(prompts), tokens, float((shares == 1.0).mean()), float(shares.mean()))


def _rows(
    models: Sequence[Judged], documents: Sequence[Document], shown: Shown | None
) -> Iterator[tuple[list[NDArray[np.float64]], NDArray[np.int64]]]:
    """Log-probabilities [n, V] of each model at positions that predict a token, and these tokens [n]."""
    total, done = sum(one.trained for one in documents), 0
    rows = max(1, ROWS_BYTES // (8 * models[0].vocab_size))
    for batch in _batches(documents):
        ids = [one.ids for one in batch]
        states = [model.states(ids) for model in models]
        for at, document in enumerate(batch):
            first = max(1, document.start) - 1
            for begin in range(first, len(document.ids) - 1, rows):
                end = min(begin + rows, len(document.ids) - 1)
                logits = [
                    _log_softmax(model.logits(of[at][begin:end]))
                    for model, of in zip(models, states, strict=True)
                ]
                yield logits, np.array(document.ids[begin + 1 : end + 1], dtype=np.int64)
                done += end - begin
                if shown is not None:
                    shown(done, total)


def _batches(documents: Sequence[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    tokens = 0
    for one in documents:
        if batch and tokens + len(one.ids) > _BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(one)
        tokens += len(one.ids)
    if batch:
        yield batch


def _log_softmax(logits: Floats) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def _divergences(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """KL(other || one) of each row of log-probabilities; what `other` rules out counts nothing."""
    probability = np.exp(other)
    with np.errstate(invalid="ignore"):  # where both rule a token out
        found: NDArray[np.float64] = np.where(probability > 0, probability * (other - one), 0.0).sum(axis=1)
    return found


def _own(log_probabilities: NDArray[np.float64], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.take_along_axis(log_probabilities, targets[:, None], axis=1)[:, 0]
    return found


def _perplexity(losses: NDArray[np.float64]) -> Perplexity:
    if not len(losses):
        raise ValueError("there is nothing to predict")
    return Perplexity(len(losses), float(losses.mean()), _error(losses))


def _error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
