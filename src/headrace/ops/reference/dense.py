"""Dense products: token embedding, linear projection, gated feed-forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
}


def embedding(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Row lookup: tokens [T] int64 and weight [V, H] give [T, H]."""
    return F.embedding(tokens, weight)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [T, I] times the transpose of weight [O, I], plus bias [O] if given: [T, O]."""
    return F.linear(x, weight, bias)


def gated_mlp(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
) -> torch.Tensor:
    """down(activation(gate(x)) * up(x)) for x [T, H], giving [T, H] (Shazeer 2020).

    `gate_up` [2F, H] holds the rows of gate above those of up, so that one product makes both; `down` is [H, F],
    the biases are [2F] and [H]. `activation` is a key of ACTIVATIONS.
    """
    gate, up = F.linear(x, gate_up, gate_up_bias).chunk(2, dim=-1)  # [T, F] each
    return F.linear(ACTIVATIONS[activation](gate) * up, down, down_bias)
