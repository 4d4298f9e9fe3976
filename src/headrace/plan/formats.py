"""How weights, keys and values are stored in memory."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.spec import KVLayout
from headrace.plan.units import DTYPE_BYTES
from headrace.quant.format import WeightFormats

_NATIVE_STRIDE = 16  # positions: the native kernels multiply with blocks of keys that are whole panels
_NATIVE_SCALE_BYTES = 4
_USUAL_BLOCK = 32  # tokens
_CODE_BITS = {"int8": 8, "fp8": 8, "int4": 4}
CODED = tuple(_CODE_BITS)
"""Types of keys and values that are codes."""


@dataclass(frozen=True, slots=True)
class KVFormat:
    """A stored key or value element, with its scales and padding.

    scale_bytes: of each position's and head's key, and as many of its value, where that is stored.
    feature_bytes: of each feature of a block's and head's keys, which have no scales of positions then.
    stride: the room of a block is a multiple of this many positions.
    """

    dtype: str
    scale_bytes: int = 0
    stride: int = 1
    feature_bytes: int = 0

    @property
    def element_bits(self) -> int:
        return _CODE_BITS.get(self.dtype) or 8 * DTYPE_BYTES[self.dtype]

    def token_bytes(self, layout: KVLayout, block_size: int = _USUAL_BLOCK) -> int:
        """Of one token's keys and values over all layers of a group, in blocks of that many tokens, which share the
        scales of features."""
        if layout.recent:
            return layout.elements_per_token * DTYPE_BYTES["bfloat16"]
        size = layout.elements_per_token * self.element_bits // 8
        if not self.feature_bytes:
            return size + layout.rows_per_token * self.scale_bytes
        keys = layout.rows_per_token // layout.parts
        return size + keys * (self.scale_bytes + layout.head_dim * self.feature_bytes // block_size)

    def block_bytes(self, layout: KVLayout, block_size: int) -> int:
        """Of one block over all layers of a group, padding included. Recurrent states are float32 always."""
        if layout.state is not None:
            return layout.slot_elements * DTYPE_BYTES["float32"]
        return self.token_bytes(layout, block_size) * (-(-block_size // self.stride) * self.stride)


def kv_format(dtype: str, *, native: bool) -> KVFormat:
    """Codes exist natively only. "int8" and "fp8" have a float scale for each position and head. "int4" has a bfloat16
    scale for each position and head of values, and a scale and a minimum for each block, head and feature of keys."""
    if not native:
        return KVFormat(dtype)
    if dtype == "int4":
        return KVFormat(dtype, DTYPE_BYTES["bfloat16"], _NATIVE_STRIDE, 2 * DTYPE_BYTES["bfloat16"])
    return KVFormat(dtype, _NATIVE_SCALE_BYTES if dtype in _CODE_BITS else 0, _NATIVE_STRIDE)


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
