"""Paged attention, one sequence at a time: the specification that every faster candidate is tested against."""

from __future__ import annotations

import torch


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
    """Causal grouped-query attention of a ragged batch over block tables; gives [T, Hq, D] in q's dtype.

    Shapes: q [T, Hq, D] rotated at its positions; caches [N, Hkv, bs, D], keys rotated at theirs; cu_q [S + 1]:
    sequence s owns rows cu_q[s]:cu_q[s + 1] of q; kv_lens [S]: positions with KV, this step's own included;
    positions [T]; block_tables [S, B] and dropped [S]: entry e of row s holds logical block e for e < sink_blocks
    and logical block e + dropped[s] after them; entries past a sequence's last block are never read.

    The query at position i sees key j if j <= i and (i - j < window or j < sinks); without window it sees all
    j <= i. If `chunked` (Llama 4), i - i % window <= j takes the place of i - j < window. Query head h reads KV head
    h // (Hq / Hkv). Logits are scale * q.k, then cap * tanh(logit / cap) where
    a soft cap is set (Gemma 2); softmax runs in float32.

    `q_sink` [T, Hq, D] is the query rotated at min(i, sinks + window - 1), and is used with the keys j < sinks in
    place of q. Why that is StreamingLLM (Xiao et al. 2023): there a token's position is its index in the rolling
    cache, so once tokens have been dropped, the sinks are at 0..sinks-1, the window after them, the query at
    sinks + window - 1. RoPE logits depend on the distance alone. Inside the window, cache distance and true
    distance agree, so the true rotation is right; to sink j the cache distance is sinks + window - 1 - j, which is
    what the second rotation gives against a key kept at its true position j. While nothing was dropped, both
    rotations are the same. Once i > sinks + window - 1 no key j < sinks is inside the window, so "j < sinks"
    alone decides which query is used with a key.

    `slopes` [Hq]: logits of a head get slope * (j - i), after the scale (ALiBi, Press et al. 2022).

    `learned_sinks` [Hq]: a logit for each head that takes part in the softmax and has no value, so that the weights of
    the keys add up to less than one (gpt-oss).
    """
    out = torch.empty_like(q)
    bounds, lengths, gone = cu_q.tolist(), kv_lens.tolist(), dropped.tolist()
    for s, (length, drop) in enumerate(zip(lengths, gone, strict=True)):
        rows = slice(bounds[s], bounds[s + 1])
        live = -(-length // block_size) - drop
        blocks = block_tables[s, :live].long()
        keys = _gather(key_cache, blocks, length - drop * block_size)  # [Hkv, L, D]
        values = _gather(value_cache, blocks, length - drop * block_size)  # [Hkv, L, D]
        at = _key_positions(live, drop, sink_blocks, block_size, q.device)[: keys.shape[1]]  # [L]
        logits = _grouped(q[rows], keys) * scale  # [Hkv, G, n, L]
        if q_sink is not None:
            num = int((at < sinks).sum())  # positions rise, so the sinks are the first columns
            logits[..., :num] = _grouped(q_sink[rows], keys[:, :num]) * scale
        if slopes is not None:
            distance = at[None, :] - positions[rows][:, None]  # [n, L]
            logits = logits + slopes.float().view(logits.shape[0], -1, 1, 1) * distance
        if soft_cap is not None:
            logits = soft_cap * torch.tanh(logits / soft_cap)
        logits = logits.masked_fill(~_visible(positions[rows], at, window, sinks, chunked), -torch.inf)
        if learned_sinks is not None:
            column = learned_sinks.float().view(logits.shape[0], -1, 1, 1).expand(*logits.shape[:3], 1)
            logits = torch.cat((logits, column), dim=-1)
        weights = logits.softmax(dim=-1)[..., : keys.shape[1]]
        mixed = weights.flatten(1, 2) @ values  # [Hkv, G*n, D]
        mixed = mixed.view(*logits.shape[:3], -1).permute(2, 0, 1, 3)  # [n, Hkv, G, D]
        out[rows] = mixed.reshape(out[rows].shape).to(q.dtype)
    return out


def _gather(cache: torch.Tensor, blocks: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` live positions of a table as float32 [Hkv, L, D]: unwritten positions are never read."""
    pages = cache[blocks].permute(1, 0, 2, 3)  # [Hkv, live, bs, D]
    return pages.flatten(1, 2)[:, :length].float()


def _key_positions(
    live: int, drop: int, sink_blocks: int, block_size: int, device: torch.device
) -> torch.Tensor:
    """Absolute position of each live table slot, rising: [live * bs]."""
    logical = torch.arange(live, device=device)
    logical[sink_blocks:] += drop
    return (logical[:, None] * block_size + torch.arange(block_size, device=device)).flatten()


def _grouped(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Products of q [n, Hq, D] with keys [Hkv, L, D], each KV head read once for its G query heads: [Hkv, G, n, L]."""
    n, num_heads, dim = q.shape
    num_kv, length = keys.shape[0], keys.shape[1]
    stacked = (
        q.float().reshape(n, num_kv, -1, dim).permute(1, 2, 0, 3).reshape(num_kv, -1, dim)
    )  # [Hkv, G*n, D]
    return (stacked @ keys.transpose(1, 2)).view(num_kv, num_heads // num_kv, n, length)


def _visible(
    query_at: torch.Tensor, key_at: torch.Tensor, window: int | None, sinks: int, chunked: bool
) -> torch.Tensor:
    """Which of the keys at key_at [L] the queries at query_at [n] may see: [n, L] bool."""
    distance = query_at[:, None] - key_at[None, :]
    visible = distance >= 0
    if window is not None:
        reach = query_at[:, None] % window + 1 if chunked else window
        visible &= (distance < reach) | (key_at < sinks)
    return visible
