"""Drawing tokens from logits: temperature, min_p, top_k, top_p, then the largest sum of scaled logit and Gumbel noise.

A row's token depends only on that row: its parameters choose the path, every operation works within a row in
an order that neither the number of rows nor the other rows can change, and sums are running sums in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headrace.core.params import SamplingParams
from headrace.runner.sampling.randomness import BLOCK, MOST_NOISE, block_noise, halves, philox4x32
from headrace.runner.sampling.state import first_width

_ID_MASK = 0xFFFF_FFFF
_MAGNITUDE = 0x7FFF_FFFF


def rank(rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The first `width` values and token ids of rows [N, V] float32, each [N, width], in the order above.

    Exact for every value greater than the last one returned; of the tokens equal to the last one, some may be
    missing unless width == V. -0.0 equals 0.0. Rows that hold NaN come out in an unspecified order.
    """
    if width < rows.shape[1]:
        values, ids = rows.topk(width, dim=-1)
    else:
        values, ids = rows, torch.arange(width, device=rows.device).expand(rows.shape)
    bits = (values + 0.0).view(torch.int32)  # adding 0.0 turns -0.0 into 0.0
    rising = bits ^ ((bits >> 31) & _MAGNITUDE)  # as whole numbers these order like the floats
    keys = ((~rising).to(torch.int64) << 32) | ids
    ids = _sorted(keys) & _ID_MASK
    return rows.gather(1, ids), ids


def top(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The first k values and token ids of rows [N, V] float32, each [N, k], exact also among equal values."""
    vocab_size = rows.shape[1]
    width = first_width(k, vocab_size)
    values, ids = rank(rows, width)
    if width < vocab_size:
        unsettled = (values[:, k - 1] <= values[:, -1]).nonzero().flatten()
        if len(unsettled):
            exact_values, exact_ids = rank(rows.index_select(0, unsettled), vocab_size)
            values[unsettled] = exact_values[:, :width]
            ids[unsettled] = exact_ids[:, :width]
    return values[:, :k], ids[:, :k]


def _sorted(keys: Tensor) -> Tensor:
    # Keys are distinct, so both sorts give the same. NumPy's is vectorised and several times faster than
    # torch's.
    if keys.device.type == "cpu":
        return torch.from_numpy(np.sort(keys.numpy(), axis=-1))
    return torch.sort(keys, dim=-1).values


CPU_PART, GPU_PART = 1 << 19, 1 << 24
"""Elements of a float64 temporary over whole rows: on a CPU 4 MiB, or one row a thread, to stay near the cache."""

_COLDEST = 1e-30  # anything lower could overflow float64; only the maximum has weight here already
_KEEP_ALL = 2.0  # more than all of the mass


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of N rows that are drawn the same way, each [N, 1]; None where no row uses the filter."""

    temperature: Tensor  # float64
    log_min_p: Tensor | None  # float64
    top_k: Tensor | None  # int64, in all rows or in none
    top_p: Tensor  # float64

    @staticmethod
    def of(params: Sequence[SamplingParams], ranked: bool, device: torch.device) -> Filters:
        """The filters of N rows; `ranked` says that all of them have a top_k."""

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

        min_p = [math.log(p.min_p) if p.min_p > 0.0 else -math.inf for p in params]
        top_k = torch.tensor([p.top_k for p in params], device=device)[:, None] if ranked else None
        return Filters(
            temperature=column([max(p.temperature, _COLDEST) for p in params]),
            log_min_p=column(min_p) if any(p.min_p > 0.0 for p in params) else None,
            top_k=top_k,
            top_p=column([p.top_p if p.top_p < 1.0 else _KEEP_ALL for p in params]),
        )

    def take(self, rows: Tensor | slice) -> Filters:
        """The filters of some of the rows."""
        return Filters(
            temperature=self.temperature[rows],
            log_min_p=None if self.log_min_p is None else self.log_min_p[rows],
            top_k=None if self.top_k is None else self.top_k[rows],
            top_p=self.top_p[rows],
        )

    def scale(self, logits: Tensor, highest: Tensor) -> Tensor:
        """Logits [N, W] less the highest [N, 1], over temperature, as float64; minus infinity below min_p.

        A token stays while its probability is at least min_p times the highest (Nguyen et al. 2024).
        """
        scaled = logits.to(torch.float64).sub_(highest).div_(self.temperature)  # [N, W]
        if self.log_min_p is not None:
            scaled.masked_fill_(scaled < self.log_min_p, -math.inf)
        return scaled


@dataclass(frozen=True, slots=True)
class Noise:
    """Gumbel noise of N rows' tokens: `randomness.noise` in torch, on any device."""

    words: Tensor  # [4, N] int64: seed low and high, position low and high

    @staticmethod
    def of(seeds: Sequence[int], positions: Sequence[int], device: torch.device | str = "cpu") -> Noise:
        """Noise of rows that belong to N seeds, at the output positions of their tokens."""
        words = np.stack((*halves(seeds), *halves(positions))).astype(np.int64)
        return Noise(torch.from_numpy(words).to(device))

    def take(self, rows: Tensor | slice) -> Noise:
        """The noise of some of the rows."""
        return Noise(self.words[:, rows])

    def at(self, ids: Tensor) -> Tensor:
        """Noise [N, W] float64 of tokens [N, W]."""
        rows = torch.arange(len(ids), device=ids.device).repeat_interleave(ids.shape[1])
        every = self.blocks(rows, (ids // BLOCK).flatten())  # [N * W, 4]
        return every.gather(1, (ids % BLOCK).view(-1, 1)).view(ids.shape)

    def blocks(self, rows: Tensor, blocks: Tensor) -> Tensor:
        """Noise [M, 4] float64 of the four tokens of block blocks[i] of row rows[i], each [M] int64."""
        if blocks.device.type == "cpu":
            return torch.from_numpy(block_noise(self.words.numpy(), rows.numpy(), blocks.numpy()))
        seed_low, seed_high, low, high = self.words[:, rows]
        words = philox4x32((low, high, blocks, torch.zeros_like(blocks)), (seed_low, seed_high))
        uniform = torch.stack(words, -1).to(torch.float64).add_(0.5).mul_(2.0**-32)
        return uniform.log_().neg_().log_().neg_()


def draw_whole(rows: Tensor, filters: Filters, noise: Noise) -> Tensor:
    """Token ids [N] drawn from rows [N, V] without top_k and top_p. Rows that hold NaN get an arbitrary id."""
    drawn = [_winner(rows[part], filters.take(part), noise.take(part)) for part in _parts(rows)]
    return torch.cat(drawn).flatten()


def draw_sorted(rows: Tensor, filters: Filters, noise: Noise, width: int) -> Tensor:
    """Token ids [N] drawn from rows [N, V] with top_k (exactly k tokens: ties go to the lowest ids) or top_p.

    With both, top_p measures the mass within the top k. `width` is the first prefix of the sorted row to try. Rows
    that it does not decide are tried with a wider one, which cannot change their token: a prefix that decides a row
    holds the same numbers as the whole sorted row. Rows that hold NaN get an arbitrary id.
    """
    drawn = []
    for part in _parts(rows):
        drawn.append(_draw_sorted_part(rows[part], filters.take(part), noise.take(part), width))
    return torch.cat(drawn).flatten()


def _winner(rows: Tensor, filters: Filters, noise: Noise) -> Tensor:
    """The tokens [n, 1] with the largest sum of scaled logit and noise of rows [n, V]."""
    vocab_size = rows.shape[1]
    best = _argmax(rows)  # [n, 1]
    scaled = filters.scale(rows, rows.gather(1, best))
    least = noise.at(best) - MOST_NOISE  # [n, 1]: no logit below it can win against the highest one
    scaled = functional.pad(scaled, (0, -vocab_size % BLOCK), value=-math.inf)
    per_row = scaled.shape[1] // BLOCK
    scaled = scaled.view(-1, BLOCK)  # [n * blocks, 4]
    pairs = torch.maximum(scaled[:, :2], scaled[:, 2:])  # several times as fast on a CPU as amax over so few
    tops = torch.maximum(pairs[:, 0], pairs[:, 1]).view(len(rows), -1)  # [n, blocks]
    (places,) = (tops >= least).flatten().nonzero(as_tuple=True)
    sums = torch.full_like(scaled, -math.inf)
    sums.index_copy_(0, places, noise.blocks(places // per_row, places % per_row)).add_(scaled)
    return _argmax(sums.view(len(rows), -1)).clamp_(max=vocab_size - 1)


def _argmax(values: Tensor) -> Tensor:
    """The first column [N, 1] with the largest of values [N, W]."""
    if values.device.type == "cpu":
        return torch.from_numpy(values.numpy().argmax(-1))[:, None]  # far faster than torch's
    return values.argmax(-1, keepdim=True)


def _draw_sorted_part(rows: Tensor, filters: Filters, noise: Noise, width: int) -> Tensor:
    vocab_size = rows.shape[1]
    whole = None  # [N, V]: probabilities
    if filters.top_k is None:
        whole = filters.scale(rows, rows.amax(-1, keepdim=True)).softmax(-1)
    tokens, settled = _draw_prefix(rows, whole, filters, noise, width)
    while width < vocab_size:
        left = (~settled).flatten().nonzero().flatten()  # [n]
        if not len(left):
            break
        width = first_width(width, vocab_size)  # the next one, since it has room for one more value
        sums = None if whole is None else whole.index_select(0, left)
        part = _draw_prefix(rows.index_select(0, left), sums, filters.take(left), noise.take(left), width)
        tokens[left], settled[left] = part
    return tokens


def _draw_prefix(
    rows: Tensor, whole: Tensor | None, filters: Filters, noise: Noise, width: int
) -> tuple[Tensor, Tensor]:
    """Draw from the first `width` ranks: token ids [N, 1], and whether [N, 1] the prefix was wide enough."""
    values, ids = rank(rows, width)  # [N, width]
    end = torch.full_like(ids[:, :1], width - 1)  # [N, 1]: the last rank that top_k keeps
    scaled = filters.scale(values, values[:, :1])
    ranks = torch.arange(width, device=rows.device)
    if whole is not None:
        mass = whole.gather(1, ids)
    else:
        assert filters.top_k is not None
        end = torch.minimum(end, filters.top_k - 1)
        mass = scaled.masked_fill(ranks > end, -math.inf).softmax(-1)
    # top_p keeps the shortest prefix whose mass reaches it, the token that crosses it included.
    last = torch.minimum(torch.searchsorted(mass.cumsum(-1), filters.top_p), end)  # [N, 1]
    # Ties with the prefix's own end may be incomplete, so the last kept value has to lie above it. After a minus
    # infinity no token is left.
    final, least = values[:, -1:], values.gather(1, last)
    settled = (least > final) | (final == -math.inf)
    if width == rows.shape[1]:
        kept = (rows > least) | ((rows == least) & (ranks <= ids.gather(1, last)))  # by token id
        return _winner(rows.masked_fill(~kept, -math.inf), filters, noise), settled
    scaled.masked_fill_(ranks > last, -math.inf)
    column = (scaled + noise.at(ids)).argmax(-1, keepdim=True)
    return ids.gather(1, column), settled


def _parts(rows: Tensor) -> Iterator[slice]:
    """Ranges of rows [N, V] to compute at a time; a row's result is the same in any range."""
    elements = CPU_PART if rows.device.type == "cpu" else GPU_PART
    step = max(torch.get_num_threads(), elements // rows.shape[1])
    return (slice(start, start + step) for start in range(0, len(rows), step))
