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

SWIGLU_LIMIT, SWIGLU_SLOPE = 7.0, 1.702
"""Of gpt-oss."""


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
    `activation` is one of `spec.Activation`.
    """
    return gate(F.linear(x, weight, bias), activation)


def gate(product: torch.Tensor, activation: str) -> torch.Tensor:
    """[T, F] from [T, 2F], the gate before up; see `spec.Activation`."""
    gate, up = product.chunk(2, dim=-1)
    if activation == "swiglu_oai":
        gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
        return (up + 1) * gate * torch.sigmoid(SWIGLU_SLOPE * gate)
    return ACTIVATIONS[activation](gate) * up
