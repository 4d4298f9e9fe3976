"""Memory for keys and values in the layout of the native kernels, one pool a KV group."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace.core.types import BlockCopy, KVGroupSpec
from headrace.models.spec import KVLayout

KV_TYPES = {"float32": "f32", "bfloat16": "bf16", "int8": "i8", "fp8": "e4m3", "int4": "i4"}
"""The kernels' names of the types of keys and values."""

_ELEMENT_BITS = {"f32": 32, "bf16": 16, "i8": 8, "e4m3": 8, "i4": 4}
_STRIDE = 16  # positions: a block has room for a multiple of this
_SCALE_BYTES, _CODED_BLOCK_SCALE_BYTES = 4, 2


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Keys and values of one layer as csrc/tensors.h lays them out, and of codes their scales, as bytes.

    keys, key_scales: None where the values are part of the keys.
    recent: of 4-bit codes, the blocks that sequences are writing; they are of another KV group.
    """

    keys: NDArray[np.uint8] | None  # [N, bytes of a block]
    values: NDArray[np.uint8]
    key_scales: NDArray[np.uint8] | None = None
    value_scales: NDArray[np.uint8] | None = None
    recent: LayerMemory | None = None


@dataclass(frozen=True, slots=True)
class StateMemory:
    """Recurrent states of one layer, float32, see models.spec.StateShape; without heads there is no matrix."""

    conv: NDArray[np.uint8]  # [N, bytes of a slot]
    matrix: NDArray[np.uint8] | None = None


class NativeKV:
    """Keys and values of every layer, or its recurrent states. Group g of `groups` belongs to `layouts[g]`.

    Memory starts as zero pages, which use memory only once they are written.
    """

    def __init__(self, layouts: Sequence[KVLayout], groups: Sequence[KVGroupSpec], dtype: str) -> None:
        self.type = KV_TYPES[dtype]
        self.layouts = tuple(layouts)
        layers: dict[int, LayerMemory | StateMemory] = {}
        self._pools: list[tuple[NDArray[np.uint8], ...]] = []
        for layout, group in zip(layouts, groups, strict=True):
            pool = self._pool(layout, group)
            self._pools.append(pool)
            for at, layer in enumerate(layout.layers):
                if layout.state is not None:
                    layers[layer] = StateMemory(*(part[at] for part in pool))
                    continue
                rows = [part[at] for part in pool[: layout.parts]]
                scales = [part[at] for part in pool[layout.parts :]]
                memory = LayerMemory(
                    None if layout.value_in_key is not None else rows[0],
                    rows[-1],
                    scales[0] if len(scales) > 1 else None,
                    scales[-1] if scales else None,
                )
                coded = layers.get(layer)
                layers[layer] = replace(coded, recent=memory) if isinstance(coded, LayerMemory) else memory
        self.layers = tuple(layers[index] for index in range(len(layers)))

    def type_of(self, layout: KVLayout) -> str:
        """The kernels' name of the type of a group's keys and values."""
        return "bf16" if layout.recent else self.type

    def _pool(self, layout: KVLayout, group: KVGroupSpec) -> tuple[NDArray[np.uint8], ...]:
        """Keys, values and their scales, or the parts of states, each [L, N, bytes of a block]; of values that are part
        of keys only the keys, which take the place of the values."""
        if layout.state is not None:
            elements = (layout.state.conv_elements, layout.state.matrix_elements)
            sizes = [count * _ELEMENT_BITS["f32"] // 8 for count in elements if count]
            return tuple(_zeros(len(layout.layers), group.memory_blocks, size) for size in sizes)
        type = self.type_of(layout)
        positions = layout.num_kv_heads * -(-group.block_size // _STRIDE) * _STRIDE
        sizes = [positions * layout.head_dim * _ELEMENT_BITS[type] // 8] * layout.parts
        if type == "i4":  # a scale and a minimum of each feature of keys, a scale of each value
            keys = 2 * layout.num_kv_heads * layout.head_dim
            sizes += [keys * _CODED_BLOCK_SCALE_BYTES, positions * _CODED_BLOCK_SCALE_BYTES]
        elif type in ("i8", "e4m3"):
            sizes += [positions * _SCALE_BYTES] * layout.parts
        return tuple(_zeros(len(layout.layers), group.memory_blocks, size) for size in sizes)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks, one after the other: a later copy may read what an earlier one wrote."""
        for copy in copies:
            for part in self._pools[copy.group]:
                part[:, copy.target] = part[:, copy.source]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for pool in self._pools for part in pool)


def _zeros(*shape: int) -> NDArray[np.uint8]:
    """Zero bytes from a page boundary on; large pages where the system gives them."""
    size = int(np.prod(shape, dtype=np.int64))
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8).reshape(shape)
