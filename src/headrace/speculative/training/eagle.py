"""EAGLE's layer: a decoder layer that predicts the model's next hidden state (Li et al. 2024, 2025).

Trained on its own predictions, as in EAGLE-3: the states that it reads for the second and third token of a draft are
those that it predicted, and so are the keys and values that it attends to.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.speculative.heads import EagleLayer
from headrace.speculative.training.data import Batch, Model, divergence, ranks

_DEPTH = 3
"""Drafted tokens that training goes through; each costs as much as the first."""
MEASURED = 5
"""Depths whose accuracy is measured."""
_DECAY = 0.8
_REGRESSION = 0.1
"""Weight of the distance between predicted and true states."""
_UNKNOWN = 0.02
"""Share of the states that training hides: after a prefix hit the state before the first new token is not known."""


class Eagle(nn.Module):
    """Parameters by the names of `EagleLayer.shapes`."""

    method = "eagle"

    def __init__(self, model: Model, layer: EagleLayer, generator: torch.Generator) -> None:
        super().__init__()
        self.model, self.layer = model, layer
        self.named = nn.ParameterDict()
        for name, shape in layer.shapes().items():
            made = torch.ones(shape)
            if len(shape) == 2:
                narrow = 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                made = torch.randn(shape, generator=generator) * (narrow / math.sqrt(shape[1]))
            self.named[name.replace(".", "/")] = nn.Parameter(made)

    def _weight(self, name: str) -> Tensor:
        found: Tensor = self.named[f"model/{name.replace('.', '/')}/weight"]
        return found

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._weight(name))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self._weight(name), self.layer.rms_norm_eps)

    def predict(self, batch: Batch, depth: int, generator: torch.Generator | None = None) -> list[Tensor]:
        """For each token of a draft, the predicted states [B, n, H]: the first from true states, and so on.

        The d-th at position p is what a draft gives whose d - 1 tokens before p were predicted. With a generator some
        true states are hidden.
        """
        n = batch.ids.shape[1]
        embedded = self.model.embed(batch.ids)  # [B, n, H]
        states = F.pad(batch.states, (0, 0, 1, 0))[:, :n]  # those of the position before
        if generator is not None:
            hidden = torch.rand(states.shape[:2], generator=generator) < _UNKNOWN
            states = states.masked_fill(hidden[..., None], 0.0)
        found: list[Tensor] = []
        past: list[tuple[Tensor, Tensor]] = []
        cos, sin = _rotations(self.layer, n)
        for _ in range(depth):
            x = self._linear("fc", torch.cat((states, embedded), dim=-1))
            x = x + self._attend(self._norm("layers.0.input_layernorm", x), past, cos, sin)
            y = self._norm("layers.0.post_attention_layernorm", x)
            inner = F.silu(self._linear("layers.0.mlp.gate_proj", y)) * self._linear(
                "layers.0.mlp.up_proj", y
            )
            x = x + self._linear("layers.0.mlp.down_proj", inner)
            found.append(self._norm("norm", x))
            states = F.pad(found[-1], (0, 0, 1, 0))[:, :n]
        return found

    def _attend(self, x: Tensor, past: list[tuple[Tensor, Tensor]], cos: Tensor, sin: Tensor) -> Tensor:
        """Attention of the entries of one depth, whose keys and values are added to `past`.

        An entry of depth d at position p sees those of the first depth up to p - d + 1, then one of each depth.
        """
        layer, (b, n, _) = self.layer, x.shape
        heads, groups = layer.num_key_value_heads, layer.num_attention_heads // layer.num_key_value_heads
        q = self._linear("layers.0.self_attn.q_proj", x).view(b, n, -1, layer.head_dim).transpose(1, 2)
        k = self._linear("layers.0.self_attn.k_proj", x).view(b, n, heads, -1).transpose(1, 2)
        v = self._linear("layers.0.self_attn.v_proj", x).view(b, n, heads, -1).transpose(1, 2)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)  # [B, Hq, n, D]
        past.append((k, v))
        if len(past) == 1:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = self._mixed(q, past)
        return self._linear("layers.0.self_attn.o_proj", mixed.transpose(1, 2).reshape(b, n, -1))

    def _mixed(self, q: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        n, scale = q.shape[2], self.layer.head_dim**-0.5
        later = len(past) - 1
        keys, values = past[0]
        unseen = torch.ones(n, n, dtype=torch.bool).triu(1 - later)
        scores = [(q @ keys.mT * scale).masked_fill(unseen, -math.inf)]  # [B, Hq, n, n]
        shifted = [_shifted(part, later - i) for i, part in enumerate(past[1:], 1)]
        scores += [((q * k).sum(-1, keepdim=True) * scale) for k, _ in shifted]  # [B, Hq, n, 1]
        weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
        mixed = weights[..., :n] @ values
        for i, (_, v) in enumerate(shifted):
            mixed = mixed + weights[..., n + i, None] * v
        return mixed

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Divergence of each token's distribution from the model's, and distance of its state from the true one."""
        with torch.no_grad():
            wanted = self.model.logits(batch.states)  # [B, n, V]
            spread = batch.states[batch.predicts(1)].std().clamp(min=1e-6)
        total = torch.zeros(())
        for depth, predicted in enumerate(self.predict(batch, _DEPTH, generator)):
            rows = batch.predicts(1, depth)
            if not rows.any():
                continue
            found, states = predicted[rows], batch.states[rows]
            distance = F.smooth_l1_loss(found / spread, states / spread)
            close = divergence(wanted[rows], self.model.logits(found))
            total = total + _DECAY**depth * (close + _REGRESSION * distance)
        return total

    @torch.no_grad()
    def ranks(self, batch: Batch) -> Tensor:
        """[N, 5]: rank of the true token at each depth of a draft along the true tokens."""
        rows = batch.predicts(1, MEASURED - 1)
        tokens = torch.roll(batch.ids, -1, dims=1)[rows]
        found = [ranks(self.model.logits(one[rows]), tokens) for one in self.predict(batch, MEASURED)]
        return torch.stack(found, dim=1)

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """By the names of docs/speculation.md."""
        return {name.replace("/", "."): one.detach().numpy() for name, one in self.named.items()}

    def section(self) -> dict[str, Any]:
        """What config.json says of the sizes."""
        sizes = asdict(self.layer)
        del sizes["hidden_size"]
        return {"layer": sizes}


def _rotations(layer: EagleLayer, n: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [n, D], in the half-split layout of Llama."""
    half = torch.arange(0, layer.head_dim, 2, dtype=torch.float64) / layer.head_dim
    angle = torch.outer(torch.arange(n, dtype=torch.float64), layer.rope_theta**-half)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().float(), angle.sin().float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _shifted(part: tuple[Tensor, Tensor], by: int) -> tuple[Tensor, Tensor]:
    """Keys and values [B, Hq, n, D] moved to `by` positions later; the first positions get zeros, and do not count."""
    k, v = part
    return (k, v) if by == 0 else (F.pad(k, (0, 0, by, 0))[:, :, :-by], F.pad(v, (0, 0, by, 0))[:, :, :-by])
