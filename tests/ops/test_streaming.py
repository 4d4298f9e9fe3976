"""The two-rotation form of attention sinks against StreamingLLM as published: positions counted in the cache."""

from __future__ import annotations

import pytest
import torch

from headrace.ops import reference, torch_fast

DIM, HEADS, SINKS, WINDOW, BLOCK = 16, 2, 3, 10, 4
FREQUENCIES = torch.tensor([10_000.0 ** (-i / DIM) for i in range(0, DIM, 2)], dtype=torch.float64)


def turn(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return reference.apply_rope(x, *reference.rope_tables(positions, FREQUENCIES, 1.0))


def published(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: int) -> torch.Tensor:
    """Query i of unrotated q, k, v [L, H, D]: keep sinks and window, then number what is kept from 0 on."""
    kept = [j for j in range(i + 1) if j < SINKS or i - j < WINDOW]
    keys = turn(k[kept], torch.arange(len(kept)))
    query = turn(q[i : i + 1], torch.tensor([len(kept) - 1]))[0]
    logits = torch.einsum("hd,jhd->hj", query, keys) * DIM**-0.5
    return torch.einsum("hj,jhd->hd", logits.softmax(-1), v[kept])


@pytest.mark.parametrize("attention", [reference.paged_attention, torch_fast.paged_attention])
def test_equals_positions_counted_in_the_cache(attention: object) -> None:
    length = 45
    rng = torch.Generator().manual_seed(8)
    q, k, v = (torch.randn(length, HEADS, DIM, generator=rng) for _ in range(3))
    want = torch.stack([published(q, k, v, i) for i in range(length)])
    positions = torch.arange(length)
    num_blocks = -(-length // BLOCK)
    caches = [torch.zeros(num_blocks, HEADS, BLOCK, DIM) for _ in range(2)]
    reference.write_kv(turn(k, positions), v, caches[0], caches[1], positions)
    for step in (length, 1):  # as one prompt, and token by token with blocks dropped
        got = []
        for start in range(0, length, step):
            at = positions[start : start + step]
            gone = max(0, (start - WINDOW + 1) // BLOCK - 1)
            table = [0, *range(1 + gone, num_blocks)]
            out = attention(
                turn(q[at], at),
                *caches,
                torch.tensor([0, len(at)]),
                torch.tensor([start + step]),
                at,
                torch.tensor([table]),
                torch.tensor([gone]),
                sink_blocks=1,
                block_size=BLOCK,
                scale=DIM**-0.5,
                window=WINDOW,
                sinks=SINKS,
                soft_cap=None,
                q_sink=turn(q[at], at.clamp(max=SINKS + WINDOW - 1)),
            )
            got.append(out)
        torch.testing.assert_close(torch.cat(got), want, atol=1e-5, rtol=1e-5)
