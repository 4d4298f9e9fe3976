"""Memory for keys and values, one pool a KV group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from headrace.core.types import BlockCopy, KVGroupSpec
from headrace.models.spec import KVLayout, StateShape
from headrace.runner.batch import LayerCache, LayerKV, LayerState


class KVStorage:
    """Keys and values of every layer, [num_blocks, num_kv_heads, block_size, head_dim] each, or its recurrent states.
    Values that are part of the keys are the same memory.

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
        layers: dict[int, LayerCache] = {}
        pools: list[tuple[torch.Tensor, ...]] = []  # [L, N, ...] each
        for layout, group in zip(layouts, groups, strict=True):
            if layout.state is not None:
                parts = state_memory(layout.state, len(layout.layers), group.memory_blocks, device)
                pools.append(parts)
                layers.update(
                    {
                        layer: LayerState(*(part[at] for part in parts))
                        for at, layer in enumerate(layout.layers)
                    }
                )
                continue
            shape = (
                layout.parts,
                len(layout.layers),
                group.memory_blocks,
                layout.num_kv_heads,
                group.block_size,
                layout.head_dim,
            )
            pool = _zeros(shape, dtype, device)  # [2 or 1, L, N, Hkv, bs, D]
            pools.append(tuple(pool))
            for at, layer in enumerate(layout.layers):
                layers[layer] = LayerKV(key=pool[0, at], value=pool[-1, at])
        self.layers = tuple(layers[index] for index in range(len(layers)))
        self._pools = tuple(pools)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks, one after the other: a later copy may read what an earlier one wrote."""
        for copy in copies:
            for part in self._pools[copy.group]:
                part[:, copy.target] = part[:, copy.source]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for pool in self._pools for part in pool)


def state_memory(
    state: StateShape, layers: int, slots: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The two parts of a `LayerState`, each with the layers as its first axis."""
    conv = (layers, slots, state.taps, state.channels)
    matrix = (layers, slots, state.heads, state.key_dim, state.value_dim)
    return _zeros(conv, torch.float32, device), _zeros(matrix, torch.float32, device)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy asks the system for zero pages, which take memory only once they are written; torch writes them all.
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(shape)
