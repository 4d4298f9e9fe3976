"""Dense products: token embedding, linear projection, gated projection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _relu2(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).square()


ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
    "relu2": _relu2,
}


def embedding(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Row lookup: tokens [T] int64 and weight [V, H] give [T, H]."""
    return F.embedding(tokens, weight)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [T, I] times the transpose of weight [O, I], plus bias [O] if given: [T, O]."""
    return F.linear(x, weight, bias)


def gated_linear(
    x: torch.Tensor, weight: torch.Tensor, activation: str, bias: torch.Tensor | None
) -> torch.Tensor:
    """activation(gate(x)) * up(x) for x [T, I], giving [T, F] (Shazeer 2020).

    `weight` [2F, I] holds the rows of gate above those of up, so that one product computes both; the bias is [2F].
    `activation` is a key of ACTIVATIONS.
    """
    gate, up = F.linear(x, weight, bias).chunk(2, dim=-1)  # [T, F] each
    return ACTIVATIONS[activation](gate) * up
