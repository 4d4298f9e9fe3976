"""Normalisation over the last dimension."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019); keeps shape and dtype.

    The division runs in float32 and is rounded to x's dtype before the product with `weight`, as in HF Llama.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016), in float32; keeps shape and dtype."""
    wide = x.float()
    wide = wide - wide.mean(dim=-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps) * weight.float()
    return (wide if bias is None else wide + bias.float()).to(x.dtype)
