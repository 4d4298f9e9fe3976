"""Medusa's heads (Cai et al. 2024): residual blocks on the last hidden state, then the model's own head."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.speculative.training.data import Batch, Model, divergence, ranks

_DECAY = 0.8
"""Weight of each head's loss beside that of the head before it, as in the paper."""


class Medusa(nn.Module):
    """`count` heads of `depth` blocks each, which begin as the identity."""

    method = "medusa"

    def __init__(self, model: Model, count: int, depth: int = 1) -> None:
        super().__init__()
        self.model = model
        size = model.hidden_size
        self.count, self.depth = count, depth
        self.weights = nn.Parameter(torch.zeros(count, depth, size, size))
        self.biases = nn.Parameter(torch.zeros(count, depth, size))

    def head(self, number: int, states: Tensor) -> Tensor:
        """Logits [N, V] of states [N, H]."""
        for j in range(self.depth):
            states = states + nn.functional.silu(
                nn.functional.linear(states, self.weights[number, j], self.biases[number, j])
            )
        return self.model.logits(states)

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """How far each head's distribution is from what the model's is once it gets there."""
        with torch.no_grad():
            wanted = self.model.logits(batch.states)  # [B, n, V], of the next token
        total = torch.zeros(())
        for i in range(self.count):
            rows = batch.predicts(i + 2)
            if not rows.any():
                continue
            later = torch.roll(wanted, -(i + 1), dims=1)[rows]
            total = total + _DECAY**i * divergence(later, self.head(i, batch.states[rows]))
        return total

    @torch.no_grad()
    def ranks(self, batch: Batch) -> Tensor:
        """[N, count]: rank of the true token under each head, for positions where all of them predict one."""
        rows = batch.predicts(self.count + 1)
        states = batch.states[rows]
        found = []
        for i in range(self.count):
            tokens = torch.roll(batch.ids, -(i + 2), dims=1)[rows]
            found.append(ranks(self.head(i, states), tokens))
        return torch.stack(found, dim=1)

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """By the names of docs/speculation.md."""
        named: dict[str, NDArray[np.float32]] = {}
        for i in range(self.count):
            for j in range(self.depth):
                named[f"heads.{i}.blocks.{j}.weight"] = self.weights[i, j].detach().numpy()
                named[f"heads.{i}.blocks.{j}.bias"] = self.biases[i, j].detach().numpy()
        return named

    def section(self) -> dict[str, Any]:
        """What config.json says of the sizes."""
        return {"num_heads": self.count, "num_blocks": self.depth}
