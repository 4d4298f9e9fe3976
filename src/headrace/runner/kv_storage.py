"""Memory for keys and values, one pool a KV group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from headrace.core.types import BlockCopy, KVGroupSpec
from headrace.models.spec import KVLayout
from headrace.runner.batch import LayerKV


class KVStorage:
    """Keys and values of every layer, [num_blocks, num_kv_heads, block_size, head_dim] each. Values that are part of
    the keys are the same memory.

    Group g of `groups` belongs to `layouts[g]`. Blocks are reused without being cleared: readers must
    skip positions that the sequence has not written, since zero times NaN is NaN.
    """

    def __init__(
        self,
        layouts: Sequence[KVLayout],
        groups: Sequence[KVGroupSpec],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        layers: dict[int, LayerKV] = {}
        pools = []
        for layout, group in zip(layouts, groups, strict=True):
            shape = (
                layout.parts,
                len(layout.layers),
                group.num_blocks,
                layout.num_kv_heads,
                group.block_size,
                layout.head_dim,
            )
            pool = _zeros(shape, dtype, device)  # [2 or 1, L, N, Hkv, bs, D]
            pools.append(pool)
            for at, layer in enumerate(layout.layers):
                layers[layer] = LayerKV(key=pool[0, at], value=pool[-1, at])
        self.layers = tuple(layers[index] for index in range(len(layers)))
        self._pools = tuple(pools)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks, one after the other: a later copy may read what an earlier one wrote."""
        for copy in copies:
            pool = self._pools[copy.group]
            pool[:, :, copy.target] = pool[:, :, copy.source]

    @property
    def nbytes(self) -> int:
        return sum(pool.nbytes for pool in self._pools)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy asks the system for zero pages, which take memory only once they are written; torch writes them all.
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(shape)
