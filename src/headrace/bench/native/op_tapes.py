"""Tapes of one op at a given shape, many times over, for benchmarks of single kernels and for the calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.bench.native.tape_step import BLOCK_SIZE, VOCAB_SIZE, TapeStep
from headrace.core.types import Retention
from headrace.models.packing import packer
from headrace.models.spec import KVLayout
from headrace.program.records import Attention
from headrace.quant.format import INPUT_ALIGN, WeightFormat

ROWS = {"f32": "f32", "bf16": "bf16", "int8": "i8"}
"""Types of activations, and of the factors of a product, as the kernels call them."""
KV_TYPES = {"f32": ("f32", 4), "bf16": ("bf16", 2), "int8": ("i8", 1)}
"""Names of KV types, as the kernels call them, and bytes of an element."""


@dataclass(frozen=True, slots=True)
class Product:
    """A weight matrix [rows, cols] of a layer; gate and up are one."""

    name: str
    rows: int
    cols: int
    gated: bool = False


def one_layer(mixer: Attention) -> KVLayout:
    """The layout of one layer's KV cache."""
    return KVLayout(
        "one", (0,), Retention.FULL, None, 0, mixer.num_kv_heads, mixer.head_dim, mixer.value_in_key
    )


class OpTapes:
    """Builds tapes for the kernels of one instruction set. `native` is headrace._native."""

    def __init__(self, native: ModuleType, kernels: str, threads: int, *, pin: bool = False) -> None:
        self._native: Any = native
        self.kernels = self._native.Kernels(kernels)
        self.team = self._native.Team(threads, pin)
        self._random = np.random.default_rng(0)
        self._tables: dict[int, NDArray[np.float32]] = {}
        self._packs: tuple[Product, WeightFormat] | None = None
        self._packer: Callable[[], Any]

    def empty(self, tokens: int, seqs: int) -> Any:
        """A tape for steps of up to so many tokens and sequences."""
        return self._native.Tape(
            self.kernels, self.team, max_tokens=tokens, max_seqs=seqs, max_logits=1, vocab_size=VOCAB_SIZE
        )

    def table(self, cols: int) -> NDArray[np.float32]:
        """Embeddings [VOCAB_SIZE, cols]."""
        if cols not in self._tables:
            self._tables[cols] = self._random.standard_normal((VOCAB_SIZE, cols), dtype=np.float32)
        return self._tables[cols]

    def pack(self, product: Product, weights: WeightFormat) -> Any:
        """A packed matrix of bfloat16 of either sign between 2^-7 and 2^-5; the same numbers at every call for the same
        shape. Copies, one after the other, share their rounding."""
        if self._packs != (product, weights):
            half = product.rows // 2 if product.gated else product.rows
            parts = [_weights(half, product.cols)] * (2 if product.gated else 1)
            self._packer = packer(self.kernels, self.team, parts, weights, gate=product.gated)
            self._packs = (product, weights)
        return self._packer()

    def linear(
        self, product: Product, weights: WeightFormat, matrices: Sequence[Any], rows: int, seqs: int = 1
    ) -> Any:
        """Calls named "linear", one for each of the matrices, over the same `rows`."""
        tape = self.empty(rows, seqs)
        x = tape.add_rows("f32", product.cols)
        group = int(matrices[0].span) if weights.activations == "int8" else 0
        encoded = tape.add_rows(ROWS[weights.activations], product.cols, group)
        tape.embed(self.table(product.cols), x)
        tape.encode(x, encoded, product.cols, name="encode")
        features = -(-product.rows // 2 // 16) * 16 if product.gated else product.rows
        out = tape.add_rows("f32", features)
        for matrix in matrices:
            tape.linear(
                encoded, matrix, out, name="linear",
                epilogue="gate" if product.gated else "store", gate="silu" if product.gated else "none",
            )  # fmt: skip
        return tape

    def encode(
        self,
        cols: int,
        weights: WeightFormat,
        rows: int,
        *,
        norm: bool = True,
        calls: int = 16,
        seqs: int = 1,
    ) -> Any:
        """Calls named "encode": of RMSNorm, if `norm`, and of the encoding of activations."""
        vectors = [np.ones(cols, np.float32)] if norm else []
        tape = self.empty(rows, seqs)
        x = tape.add_rows("f32", cols)
        encoded = tape.add_rows(
            ROWS[weights.activations], cols, weights.span or -(-cols // INPUT_ALIGN) * INPUT_ALIGN
        )
        tape.embed(self.table(cols), x)
        for _ in range(calls):
            tape.encode(x, encoded, cols, norm=vectors, eps=1e-5, name="encode")
        return tape

    def rope(self, mixer: Attention, kv_type: str, step: TapeStep, *, calls: int = 8) -> Any:
        """Calls named "rope", one for each of `calls` layers: of q and k, with the write of keys and values."""
        tape = self.empty(step.tokens, step.seqs)
        group = tape.add_group(block_size=BLOCK_SIZE, num_blocks=step.num_blocks, sink_blocks=0)
        columns = (mixer.num_heads + 2 * mixer.num_kv_heads) * mixer.head_dim
        qkv = tape.add_rows("f32", columns)
        q = tape.add_queries("f32" if kv_type == "f32" else "bf16", mixer.num_heads * mixer.head_dim)
        half = mixer.head_dim // 2
        rotation = tape.rotations(1e4 ** (-np.arange(half, dtype=np.float64) / half), 1.0)
        tape.embed(self.table(columns), qkv)
        for _ in range(calls):
            cache = self._cache(tape, group, mixer, kv_type, step)
            tape.rope(qkv, cache, q, num_heads=mixer.num_heads, rotated=mixer.head_dim, rotation=rotation)
        return tape

    def attention(self, mixer: Attention, kv_type: str, step: TapeStep, copies: int) -> Any:
        """Calls named "attention", one for each of `copies` layers."""
        tape = self.empty(step.tokens, step.seqs)
        group = tape.add_group(block_size=BLOCK_SIZE, num_blocks=step.num_blocks, sink_blocks=0)
        activations = "f32" if kv_type == "f32" else "bf16"
        q = tape.add_queries(activations, mixer.num_heads * mixer.head_dim)
        out = tape.add_rows(activations, mixer.num_heads * mixer.value_dim)
        for _ in range(copies):
            cache = self._cache(tape, group, mixer, kv_type, step)
            tape.attention(q, None, cache, out, num_heads=mixer.num_heads, scale=mixer.scale)
        return tape

    def kv_bytes(self, mixer: Attention, kv_type: str, step: TapeStep) -> int:
        """Of the keys, or the values, of one layer."""
        return step.num_blocks * BLOCK_SIZE * mixer.num_kv_heads * mixer.head_dim * KV_TYPES[kv_type][1]

    def _cache(self, tape: Any, group: int, mixer: Attention, kv_type: str, step: TapeStep) -> Any:
        name = KV_TYPES[kv_type][0]
        size, parts = self.kv_bytes(mixer, kv_type, step), one_layer(mixer).parts
        heads = step.num_blocks * mixer.num_kv_heads * BLOCK_SIZE
        names = ("value_scales", "key_scales")[:parts] if kv_type == "int8" else ()
        scales = {name: np.full(heads, 0.01, np.float32) for name in names}
        # 0x3c3c is 0.011 in bfloat16 and float32: written, or all pages would be the one page of zeros.
        values, *keys = (np.full(size, 0x3C, np.uint8) for _ in range(parts))
        return tape.add_kv(
            group, name, keys[0] if keys else None, values, num_kv_heads=mixer.num_kv_heads,
            head_dim=mixer.head_dim, value_dim=mixer.value_dim, **scales,
        )  # fmt: skip


def _weights(rows: int, cols: int) -> NDArray[np.uint16]:
    bits = np.frombuffer(np.random.default_rng(rows).bytes(rows * cols * 2), np.uint16)
    return ((bits & np.uint16(0x80FF)) | np.uint16(0x3C00)).reshape(rows, cols)
