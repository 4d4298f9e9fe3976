"""Writes to the paged KV cache."""

from __future__ import annotations

import torch


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Scatter key, value [T, Hkv, D] into the caches [N, Hkv, bs, D] in place, token t at slot slots[t].

    A slot is block * bs + offset; slots [T] int64 are distinct. The caches may have another dtype.
    """
    block_size = key_cache.shape[2]
    block, offset = slots // block_size, slots % block_size
    key_cache[block, :, offset] = key.to(key_cache.dtype)
    value_cache[block, :, offset] = value.to(value_cache.dtype)


def round_rows(x: torch.Tensor, kind: str) -> torch.Tensor:
    """What a cache of type `kind` holds of keys or values x [..., D]: "int8" or "fp8" (E4M3), one scale a row.

    Attention over an int8 cache rounds queries in the same way.
    The scale makes the largest magnitude of a row 127 or 448; codes are rounded to nearest even.
    """
    top = x.abs().amax(-1, keepdim=True)
    if kind == "int8":
        scale = top / 127
        return torch.round(x / scale.clamp(min=1e-38)) * scale
    scale = top / 448
    return (x / scale.clamp(min=1e-38)).to(torch.float8_e4m3fn).float() * scale


def round_block_keys(keys: torch.Tensor) -> torch.Tensor:
    """What a 4-bit cache holds of a block of keys [..., T, D], bfloat16 numbers, once its T positions are complete.

    Each feature has a minimum and a scale over the block, in bfloat16; codes are 0 to 15.
    """
    low, high = keys.amin(-2, keepdim=True), keys.amax(-2, keepdim=True)
    scale = (high / 15 - low / 15).bfloat16().float()
    codes = torch.floor((keys - low) / scale.clamp(min=1e-38) + 0.5).clamp(0, 15)
    return (low + scale * codes).bfloat16().float()


def round_block_values(values: torch.Tensor) -> torch.Tensor:
    """The same of values [..., T, D]: a scale for each position, which gives its largest magnitude code -8 of -8..7."""
    peak = values.gather(-1, values.abs().argmax(-1, keepdim=True))
    scale = (peak / -8).bfloat16().float()
    steps = values / torch.where(scale == 0, 1.0, scale)
    codes = torch.floor(steps + 8.5).clamp(0, 15) - 8
    return scale * codes
