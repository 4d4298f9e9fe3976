"""Mixtures of experts: the choice of experts for each token, and products with the matrices of the chosen ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from headrace.ops.reference.dense import gate

TINY = 1e-20
"""Added to a sum of weights, which may be 0."""


def route(
    logits: torch.Tensor,
    choice_bias: torch.Tensor | None,
    expert_scale: torch.Tensor | None = None,
    *,
    top_k: int,
    scores: str,
    normalize: bool,
    scale: float,
    groups: int,
    top_groups: int,
    group_score: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(experts [T, K] int64 in falling order of their scores, their weights [T, K] float32) from logits [T, E].

    The options are those of `spec.RouterSpec`. Equal scores are in the order of their experts. choice_bias: [E] or
    None. DeepSeek-V2 (2024, 2.2.2) describes groups, and DeepSeek-V3 (2024, 2.1.2) the bias. expert_scale: [E] or None.
    """
    logits = logits.float()
    if scores == "softmax":
        values = logits.softmax(-1)
    else:
        values = logits.sigmoid() if scores == "sigmoid" else logits
    ranked = values if choice_bias is None else values + choice_bias.float()
    if top_groups < groups:
        ranked = _best_groups(ranked, groups, top_groups, 1 if group_score == "max" else 2)
    experts = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]  # [T, K]
    weights = values.gather(-1, experts)
    if scores == "softmax_chosen":
        weights = weights.softmax(-1)
    if normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + TINY)
    weights = weights * scale
    return experts, weights if expert_scale is None else weights * expert_scale.float()[experts]


def _best_groups(ranked: torch.Tensor, groups: int, top_groups: int, counted: int) -> torch.Tensor:
    """Scores [T, E], minus infinity outside of the best groups by the sum of their `counted` largest scores."""
    grouped = ranked.unflatten(-1, (groups, -1))  # [T, G, E / G]
    totals = grouped.topk(counted, dim=-1).values.sum(-1)  # [T, G]
    best = totals.sort(dim=-1, descending=True, stable=True).indices[:, :top_groups]
    kept = torch.zeros_like(totals, dtype=torch.bool).scatter(-1, best, True)
    masked: torch.Tensor = grouped.masked_fill(~kept[:, :, None], -torch.inf)
    return masked.flatten(1)


def heads_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The features of each head, x [T, H, I], times its own matrix of weight [H, O, I]: [T, H, O]."""
    return torch.einsum("thi,hoi->tho", x, weight)


def expert_linear(
    x: torch.Tensor,
    counts: list[int],
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
) -> torch.Tensor:
    """Rows x [N, I], of which the first counts[0] meet the first expert's matrix, and so on: [N, O].

    weight: [E, O, I]; bias: [E, O] or None. With `activation`, rows of a gate lie above those of up, as in
    `gated_linear`, and O is halved.
    """
    outputs = weight.shape[1] if activation is None else weight.shape[1] // 2
    out = x.new_empty(len(x), outputs)
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        rows = slice(start, start + count)
        product = F.linear(x[rows], weight[expert], None if bias is None else bias[expert])
        out[rows] = product if activation is None else gate(product, activation)
        start += count
    return out
