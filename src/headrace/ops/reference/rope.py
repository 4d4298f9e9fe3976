"""Rotary position embedding (Su et al. 2021), in the half-split layout of most HF checkpoints."""

from __future__ import annotations

import torch


def rope_tables(
    positions: torch.Tensor, inverse_frequencies: torch.Tensor, attention_factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, each [T, R/2] float32, for positions [T] int64 and inverse frequencies [R/2] float64.

    The angles are made in float64 for the step's own positions: a float32 product is off by 0.03 radian at
    position 10^6, and a table of all positions would have to grow with the longest stream. Both results are
    multiplied by `attention_factor` (YaRN's temperature; 1 elsewhere).
    """
    angles = positions.to(torch.float64)[:, None] * inverse_frequencies[None, :]  # [T, R/2]
    return (angles.cos() * attention_factor).float(), (angles.sin() * attention_factor).float()


def deinterleave(x: torch.Tensor, rotated: int) -> torch.Tensor:
    """The first `rotated` channels of x [T, heads, D] with the even ones before the odd ones: pairs of neighbours
    become pairs of channels that lie rotated / 2 apart. Products of queries and keys stay the same."""
    return torch.cat((x[..., 0:rotated:2], x[..., 1:rotated:2], x[..., rotated:]), dim=-1)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first R of D channels of x [T, heads, D] by the angles of cos, sin [T, R/2]; gives [T, heads, D].

    Channel c < R/2 forms a pair with channel c + R/2. The rotation runs in float32 and is rounded once.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None, :], sin[:, None, :]  # [T, 1, R/2]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()  # [T, heads, R/2]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    if 2 * half == x.shape[-1]:
        return rotated
    return torch.cat((rotated, x[..., 2 * half :]), dim=-1)
