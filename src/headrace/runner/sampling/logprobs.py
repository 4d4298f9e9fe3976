"""Log-probabilities of chosen tokens and of the most likely ones, from the model's untouched logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.core.types import TokenLogprobs
from headrace.ops.scratch import CHUNK_ELEMENTS
from headrace.runner.sampling.draw import top

Entry = tuple[int, float, int]  # token, logprob, rank


def token_logprobs(logits: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    """The log-probability of tokens[i] in row i of logits [R, V] float32, with the counts[i] likeliest.

    A rank is 1 + the number of tokens with a strictly greater logit, so equal logits share a rank. The list
    is in order of falling logit, equal ones by rising id, and holds at most V tokens. Row i's numbers depend
    on row i only.
    """
    step = max(1, CHUNK_ELEMENTS // logits.shape[1])
    found: list[TokenLogprobs] = []
    for start in range(0, len(logits), step):
        part = slice(start, start + step)
        found.extend(_part(logits[part], tokens[part], counts[part]))
    return tuple(found)


def prompt_logprobs(logits: Tensor, targets: Sequence[int], k: int) -> tuple[TokenLogprobs, ...]:
    """Like `token_logprobs` with the same k for every row: row i predicts the prompt token targets[i]."""
    return token_logprobs(logits, targets, [k] * len(targets))


def _part(logits: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    logprobs = logits.log_softmax(-1)  # [n, V]
    chosen = torch.tensor(tokens, dtype=torch.int64, device=logits.device)[:, None]  # [n, 1]
    values: list[float] = logprobs.gather(1, chosen).flatten().tolist()
    ranks: list[int] = (logits > logits.gather(1, chosen)).sum(-1).add_(1).tolist()
    k = min(max(counts), logits.shape[1])
    tops: list[list[Entry]] = _top_entries(logits, logprobs, k) if k else [[] for _ in tokens]
    return [
        TokenLogprobs(token, value, rank, tuple(entries[:count]))
        for token, value, rank, entries, count in zip(tokens, values, ranks, tops, counts, strict=True)
    ]


def _top_entries(logits: Tensor, logprobs: Tensor, k: int) -> list[list[Entry]]:
    best, ids = top(logits, k)  # [n, k]
    # A value's rank is the place of its first equal, since all greater values stand before it.
    ranks = torch.searchsorted(best.neg().contiguous(), best.neg().contiguous()) + 1
    triples = zip(ids.tolist(), logprobs.gather(1, ids).tolist(), ranks.tolist(), strict=True)
    return [list(zip(*columns, strict=True)) for columns in triples]
