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
