"""How weights, keys and values are stored in memory."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.spec import KVLayout
from headrace.plan.units import DTYPE_BYTES
from headrace.quant.format import WeightFormats

_NATIVE_STRIDE = 16  # positions: the native kernels multiply with blocks of keys that are whole panels
_NATIVE_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class KVFormat:
    """A stored key or value element, with its scales and padding.

    scale_bytes: of each position's and head's key, and as many of its value, where that is stored.
    stride: the room of a block is a multiple of this many positions.
    """

    dtype: str
    scale_bytes: int = 0
    stride: int = 1

    @property
    def element_bytes(self) -> int:
        return 1 if self.dtype == "int8" else DTYPE_BYTES[self.dtype]

    def token_bytes(self, layout: KVLayout) -> int:
        """Of one token's keys and values over all layers of a group."""
        return layout.elements_per_token * self.element_bytes + layout.rows_per_token * self.scale_bytes

    def block_bytes(self, layout: KVLayout, block_size: int) -> int:
        """Of one block over all layers of a group, padding included. Recurrent states are float32 always."""
        if layout.state is not None:
            return layout.slot_elements * DTYPE_BYTES["float32"]
        return self.token_bytes(layout) * (-(-block_size // self.stride) * self.stride)


def kv_format(dtype: str, *, native: bool) -> KVFormat:
    """`dtype` "int8" has a float scale for each position and head, and exists natively only."""
    if not native:
        return KVFormat(dtype)
    return KVFormat(dtype, _NATIVE_SCALE_BYTES if dtype == "int8" else 0, _NATIVE_STRIDE)


@dataclass(frozen=True, slots=True)
class MemoryFormat:
    """How a model is stored in memory: `weights` None is plain tensors in the compute type, else packed matrices.

    table: type of the embeddings; on the native path that of the checkpoint where the compute type holds it exactly.
    threads: CPU threads, which have scratch memory of their own on the native path.
    """

    dtype: str
    kv: KVFormat
    weights: WeightFormats | None = None
    threads: int = 1
    tiled: bool = True  # whether torch's attention cuts long prompts; the reference ops do not
    table: str | None = None  # None: the compute type

    @property
    def element_bytes(self) -> int:
        """Of the compute type: dense weights and activations of torch."""
        return DTYPE_BYTES[self.dtype]

    @property
    def table_bytes(self) -> int:
        """Of one element of the embeddings."""
        return DTYPE_BYTES[self.table or self.dtype]


def memory_format(
    dtype: str,
    kv_dtype: str,
    weights: WeightFormats | None,
    threads: int = 1,
    table: str | None = None,
    *,
    tiled: bool = True,
) -> MemoryFormat:
    """`weights` says whether the native kernels run, and in which formats."""
    return MemoryFormat(
        dtype, kv_format(kv_dtype, native=weights is not None), weights, threads, tiled, table
    )
