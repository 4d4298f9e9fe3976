"""Paged attention in torch with little Python a step: all decoding sequences in a few padded products.

Same meaning as `reference.paged_attention`, which documents it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.ops.scratch import MAX_GATHERED, MAX_TILE_ROWS


@dataclass(frozen=True, slots=True)
class _Call:
    """What stays the same over all parts of one call."""

    key_cache: torch.Tensor  # [N * Hkv, bs * D]
    value_cache: torch.Tensor  # [N * Hkv, bs * D]
    num_kv: int
    sink_blocks: int
    block_size: int
    scale: float
    window: int | None
    sinks: int
    soft_cap: float | None
    learned_sinks: torch.Tensor | None  # [Hkv, G, 1, 1] float32
    chunked: bool
    slopes: torch.Tensor | None  # [Hkv, G, 1, 1] float32


def paged_attention(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    cu_q: torch.Tensor,
    kv_lens: torch.Tensor,
    positions: torch.Tensor,
    block_tables: torch.Tensor,
    dropped: torch.Tensor,
    *,
    sink_blocks: int,
    block_size: int,
    scale: float,
    window: int | None,
    sinks: int,
    soft_cap: float | None,
    q_sink: torch.Tensor | None = None,
    learned_sinks: torch.Tensor | None = None,
    chunked: bool = False,
    slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `reference.paged_attention`. The caches must be contiguous."""
    call = _Call(
        key_cache.view(key_cache.shape[0] * key_cache.shape[1], -1),
        value_cache.view(value_cache.shape[0] * value_cache.shape[1], -1),
        key_cache.shape[1],
        sink_blocks,
        block_size,
        scale,
        window,
        sinks,
        soft_cap,
        None if learned_sinks is None else learned_sinks.float().view(key_cache.shape[1], -1, 1, 1),
        chunked,
        None if slopes is None else slopes.float().view(key_cache.shape[1], -1, 1, 1),
    )
    out = torch.empty_like(q)
    bounds = cu_q.tolist()
    live = [
        -(-length // block_size) - drop
        for length, drop in zip(kv_lens.tolist(), dropped.tolist(), strict=True)
    ]
    single: dict[int, list[int]] = {}  # padding to the longest of a power-of-two bucket wastes at most half
    for s, num in enumerate(live):
        first, last = bounds[s], bounds[s + 1]
        if last - first == 1:
            single.setdefault(num.bit_length(), []).append(s)
        else:
            part = slice(s, s + 1)
            table = block_tables[part, :num]
            _attend_slice(call, q, q_sink, out, (first, last), kv_lens[part], positions, table, dropped[part])
    for members in single.values():
        width = max(live[s] for s in members)
        step = max(1, MAX_GATHERED // (width * key_cache.shape[1:].numel()))
        for start in range(0, len(members), step):
            chosen = torch.tensor(members[start : start + step], device=q.device)
            rows = cu_q[chosen].long()
            out[rows] = _attend(
                call,
                q[rows, None],
                None if q_sink is None else q_sink[rows, None],
                kv_lens[chosen],
                positions[rows, None],
                *_gather(call, block_tables[chosen, :width], kv_lens[chosen], dropped[chosen]),
            ).squeeze(1)
    return out


def _attend_slice(
    call: _Call,
    q: torch.Tensor,
    q_sink: torch.Tensor | None,
    out: torch.Tensor,
    rows: tuple[int, int],
    kv_len: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    dropped: torch.Tensor,
) -> None:
    """One sequence with several query rows, in tiles of rows; writes rows of `out`."""
    first, last = rows
    keys, values, at = _gather(call, table, kv_len, dropped)  # [1, Hkv, L, D] twice, [1, L]
    tile = max(1, min(MAX_TILE_ROWS, MAX_GATHERED // (q.shape[1] * keys.shape[2])))
    for begin in range(first, last, tile):
        part = slice(begin, min(begin + tile, last))
        seen = at[0] <= positions[part.stop - 1]
        low, high = 0, int(seen.sum())  # columns rise in position
        if call.window is not None and not call.sinks:
            low = int((at[0] <= positions[begin] - call.window).sum())
        columns = slice(low, high)
        out[part] = _attend(
            call,
            q[None, part],
            None if q_sink is None else q_sink[None, part],
            kv_len,
            positions[None, part],
            keys[:, :, columns],
            values[:, :, columns],
            at[:, columns],
        )[0]


def _gather(
    call: _Call, tables: torch.Tensor, kv_lens: torch.Tensor, dropped: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values [S, Hkv, L, D] float32 of tables [S, B], L = B * bs, and their positions [S, L].

    Values after a sequence's end are set to zero: their weight is zero, but a NaN left there by another
    request would survive the product.
    """
    num_seqs, width = tables.shape
    heads = torch.arange(call.num_kv, device=tables.device)
    # Taking (block, head) pairs as the rows of a matrix leaves the result in the order that the products read.
    index = (tables.long()[:, None, :] * call.num_kv + heads[:, None]).flatten()  # [S * Hkv * B]
    shape = (num_seqs, call.num_kv, width * call.block_size, -1)
    keys = call.key_cache.index_select(0, index).view(shape).float()
    values = call.value_cache.index_select(0, index).view(shape).float()
    logical = torch.arange(width, device=tables.device).repeat(num_seqs, 1)  # [S, B]
    logical[:, call.sink_blocks :] += dropped[:, None]
    offsets = torch.arange(call.block_size, device=tables.device)
    at = (logical[:, :, None] * call.block_size + offsets).flatten(1)  # [S, L]
    unwritten = (at >= kv_lens[:, None]).view(num_seqs, width, -1)  # [S, B, bs]
    s, b = unwritten.any(dim=-1).nonzero(
        as_tuple=True
    )  # few blocks: a pass over all values would cost a product
    pages = values.view(num_seqs, call.num_kv, width, call.block_size, -1)
    pages[s, :, b] = pages[s, :, b].masked_fill(unwritten[s, b][:, None, :, None], 0.0)
    return keys, values, at


def _attend(
    call: _Call,
    q: torch.Tensor,
    q_sink: torch.Tensor | None,
    kv_lens: torch.Tensor,
    query_at: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    key_at: torch.Tensor,
) -> torch.Tensor:
    """Attention of q [S, n, Hq, D] at query_at [S, n] to keys, values [S, Hkv, L, D] at key_at [S, L]: q's shape."""
    num_seqs, rows, num_heads, dim = q.shape
    groups = num_heads // call.num_kv
    logits = _stack(call, q) @ keys.transpose(2, 3)  # [S, Hkv, G*n, L]
    if q_sink is not None:
        width = min(call.sink_blocks * call.block_size, keys.shape[2])  # the sinks lie in the first columns
        against_sinks = _stack(call, q_sink) @ keys[:, :, :width].transpose(2, 3)
        is_sink = (key_at[:, :width] < call.sinks)[:, None, None, :]
        logits[..., :width] = torch.where(is_sink, against_sinks, logits[..., :width])
    logits *= call.scale
    if call.soft_cap is not None:
        logits = (logits / call.soft_cap).tanh_() * call.soft_cap
    distance = query_at[:, :, None] - key_at[:, None, :]  # [S, n, L]
    hidden = (distance < 0) | (key_at >= kv_lens[:, None])[:, None, :]
    if call.window is not None:
        reach = query_at[:, :, None] % call.window + 1 if call.chunked else call.window
        hidden |= (distance >= reach) & (key_at >= call.sinks)[:, None, :]
    grid = logits.view(num_seqs, call.num_kv, groups, rows, -1)
    if call.slopes is not None:
        grid -= call.slopes * distance[:, None, None]
    grid.masked_fill_(hidden[:, None, None], -torch.inf)
    if call.learned_sinks is not None:
        column = call.learned_sinks.expand(*grid.shape[:-1], 1)
        logits = torch.cat((grid, column), dim=-1).softmax(dim=-1)[..., :-1].reshape(logits.shape)
    else:
        logits = logits.softmax(dim=-1)
    mixed = logits @ values  # [S, Hkv, G*n, D]
    mixed = mixed.view(num_seqs, call.num_kv, groups, rows, dim).permute(0, 3, 1, 2, 4)  # [S, n, Hkv, G, D]
    return mixed.reshape(q.shape).to(q.dtype)


def _stack(call: _Call, q: torch.Tensor) -> torch.Tensor:
    """Put q [S, n, Hq, D] as float32 [S, Hkv, G*n, D]: the G heads of a KV head share one product."""
    num_seqs, rows, _, dim = q.shape
    grouped = (
        q.float().reshape(num_seqs, rows, call.num_kv, -1, dim).permute(0, 2, 3, 1, 4)
    )  # [S, Hkv, G, n, D]
    return grouped.reshape(num_seqs, call.num_kv, -1, dim)
