"""A compact Llama in plain torch, with the parameter names of the HF folders."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of one model; the field names are those of an HF Llama config."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    head_dim: int = 32
    vocab_size: int = 2048
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5


SHAPES: dict[str, Shape] = {
    "tale": Shape(256, 6, 8, 4, 768),
    "tale-draft": Shape(128, 3, 4, 4, 256),
}


def rope_table(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (length, head_dim), in the half-split Llama layout."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angle = torch.outer(torch.arange(length, dtype=torch.float32), shape.rope_theta**-half)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x of shape (batch, heads, length, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query causal attention."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        kv = s.num_key_value_heads * s.head_dim
        self.q_proj = nn.Linear(s.hidden_size, s.num_attention_heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(s.num_attention_heads * s.head_dim, s.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, n, _ = x.shape
        s = self.s
        q = self.q_proj(x).view(b, n, s.num_attention_heads, s.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, n, s.num_key_value_heads, s.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, n, s.num_key_value_heads, s.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        repeat = s.num_attention_heads // s.num_key_value_heads
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).reshape(b, n, -1))
        return mixed


class Mlp(nn.Module):
    """The gated SiLU feed-forward block."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.up_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.down_proj = nn.Linear(s.intermediate_size, s.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.hidden_size, eps=s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = nn.RMSNorm(s.hidden_size, eps=s.rms_norm_eps)
        self.mlp = Mlp(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Embeddings, layers and the last norm."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        self.layers = nn.ModuleList(Block(s) for _ in range(s.num_hidden_layers))
        self.norm = nn.RMSNorm(s.hidden_size, eps=s.rms_norm_eps)


class Llama(nn.Module):
    """The language model; the output head is the embedding table."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.shape = s
        self.model = Decoder(s)
        cos, sin = rope_table(s, s.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.cos: Tensor
        self.sin: Tensor
        deep = (2 * s.num_hidden_layers) ** -0.5
        for name, p in self.named_parameters():
            if p.ndim == 2:
                down = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 * (deep if down else 1.0))
        # Muon lets the blocks write strongly into the residual stream from the first steps on. Small
        # embeddings would drown in it, and with them what the model needs to copy a word; so they
        # start large, and the last norm small, which keeps the first logits near zero.
        nn.init.normal_(self.model.embed_tokens.weight, std=0.5)
        nn.init.constant_(self.model.norm.weight, 0.06)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (batch, length, vocab) for ids (batch, length)."""
        n = ids.shape[1]
        cos, sin = self.cos[:n], self.sin[:n]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def loss(self, ids: Tensor) -> Tensor:
        """Mean next-token cross-entropy of ids (batch, length + 1)."""
        logits = self(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
