"""Routed rows in torch: one for each token and chosen expert, those of an expert together."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Routing:
    """order: [T * K] the routed rows' (token, choice) pairs, numbered token * K + choice, by expert and then by token.
    counts: rows of each expert. weights: [T, K] float32 of the choices. gate: [T] of the shared expert, or None."""

    order: torch.Tensor
    counts: list[int]
    weights: torch.Tensor
    gate: torch.Tensor | None

    @property
    def row_weights(self) -> torch.Tensor:
        """[T * K] of the routed rows."""
        return self.weights.flatten()[self.order]

    @classmethod
    def of(
        cls, experts: torch.Tensor, weights: torch.Tensor, num_experts: int, gate: torch.Tensor | None
    ) -> Routing:
        """From the experts [T, K] of each token."""
        flat = experts.flatten()
        counts = torch.bincount(flat, minlength=num_experts).tolist()
        return cls(flat.sort(stable=True).indices, counts, weights, gate)


def dispatch(x: torch.Tensor, routing: Routing) -> torch.Tensor:
    """The routed rows [T * K, H] of x [T, H]."""
    return x[routing.order // routing.weights.shape[1]]


def combine(
    outputs: torch.Tensor, routing: Routing, shared: torch.Tensor | None = None, *, weighted: bool = True
) -> torch.Tensor:
    """[T, H]: the sum of each token's rows of `outputs` [T * K, H], times their weights or as they are, and of the
    shared expert's output."""
    chosen = torch.empty_like(outputs)
    chosen[routing.order] = outputs
    weights = routing.weights[:, :, None].to(outputs.dtype)
    rows = chosen.unflatten(0, weights.shape[:2])
    total: torch.Tensor = (rows * weights if weighted else rows).sum(1)
    if shared is None:
        return total
    return total.add_(shared if routing.gate is None else shared * routing.gate[:, None].to(shared.dtype))
