"""Which tokens of a KV head stay when others are evicted (SnapKV, Li et al. 2024), over keys of one sequence in their
order."""

from __future__ import annotations

import torch

NEIGHBOURS = 3  # on each side, whose sums count for a token as well: a maximum over seven, as in SnapKV


def attention_mass(
    q: torch.Tensor,
    key: torch.Tensor,
    *,
    scale: float,
    soft_cap: float | None = None,
    learned_sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """What the softmax of the last queries gives to each key of one KV head: [L], summed over queries.

    q [W, G, D]: the G query heads of the sequence's last W tokens, rotated; key [L, D], those of the same tokens last.
    learned_sinks [G]: logits that take part in the softmax. A row whose softmax is not finite adds nothing.
    """
    window, length = len(q), len(key)
    scores = torch.einsum("wgd,ld->wgl", q.float(), key.float()) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    places = torch.arange(length)
    hidden = places > torch.arange(length - window, length)[:, None]  # [W, L]
    scores = scores.masked_fill(hidden[:, None], float("-inf"))
    if learned_sinks is not None:
        sinks = learned_sinks.float()[None, :, None].expand(window, -1, 1)
        scores = torch.cat((scores, sinks), -1)
    mass = torch.softmax(scores, -1)[..., :length]  # [W, G, L]
    finite = mass.isfinite().all(-1, keepdim=True)
    return torch.where(finite, mass, torch.zeros_like(mass)).sum((0, 1))


def choose_kept(sums: torch.Tensor, budget: int, sinks: int, recent: int) -> torch.Tensor:
    """The tokens that stay, [budget] in rising order: the first `sinks`, the last `recent`, and the heaviest of the
    others.

    A token counts with the largest sum of itself and its neighbours among these others; of equal ones stays the one
    with the larger sum of its own, then the earlier one.
    """
    end = len(sums) - recent
    others = sums[sinks:end].tolist()
    pooled = [max(others[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]) for at in range(len(others))]
    order = sorted(range(len(others)), key=lambda at: (-pooled[at], -others[at], at))
    chosen = sorted(sinks + at for at in order[: budget - sinks - recent])
    return torch.tensor([*range(sinks), *chosen, *range(end, len(sums))], dtype=torch.int64)
