"""GGUF files written byte by byte, to be right or wrong on purpose; tests/gguf_files.py writes whole models."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from headrace.gguf.types import TYPES

F32 = 0


@dataclass(frozen=True)
class Typed:
    """A value of metadata with its type's number; `raw` are its bytes."""

    kind: int
    raw: bytes


def u8(value: int) -> Typed:
    return Typed(0, struct.pack("<B", value))


def u32(value: int) -> Typed:
    return Typed(4, struct.pack("<I", value))


def u64(value: int) -> Typed:
    return Typed(10, struct.pack("<Q", value))


def text(value: str | bytes) -> Typed:
    raw = value.encode() if isinstance(value, str) else value
    return Typed(8, struct.pack("<Q", len(raw)) + raw)


def array(kind: int, raw: bytes, count: int) -> Typed:
    return Typed(9, struct.pack("<IQ", kind, count) + raw)


def typed(value: Any) -> Typed:
    """A value in the type that writers of models give it."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, bool):
        return Typed(7, struct.pack("<B", value))
    if isinstance(value, int):
        return u32(value) if value >= 0 else Typed(5, struct.pack("<i", value))
    if isinstance(value, float):
        return Typed(6, struct.pack("<f", value))
    if isinstance(value, str | bytes):
        return text(value)
    items = [typed(item) for item in value]
    return array(items[0].kind, b"".join(item.raw for item in items), len(items))


@dataclass(frozen=True)
class Tensor:
    """shape: rows before columns. data: None is zeros of the right size; offset: None is right after the one before."""

    shape: tuple[int, ...]
    kind: int = F32
    data: bytes | None = None
    offset: int | None = None


@dataclass
class File:
    """The parts of a file; each can be replaced by something wrong."""

    metadata: Mapping[str, Any] | list[tuple[str, Any]] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] | list[tuple[str, Tensor]] = field(default_factory=dict)
    magic: bytes = b"GGUF"
    version: int = 3
    order: str = "<"
    num_tensors: int | None = None
    num_keys: int | None = None
    alignment: int = 32

    def header(self) -> bytes:
        metadata = self.metadata.items() if isinstance(self.metadata, Mapping) else self.metadata
        tensors = list(self.tensors.items() if isinstance(self.tensors, Mapping) else self.tensors)
        metadata = list(metadata)
        count = len(tensors) if self.num_tensors is None else self.num_tensors
        keys = len(metadata) if self.num_keys is None else self.num_keys
        raw = self.magic + struct.pack(f"{self.order}IQQ", self.version, count, keys)
        for key, value in metadata:
            one = typed(value)
            raw += text(key).raw + struct.pack("<I", one.kind) + one.raw
        at = 0
        for name, tensor in tensors:
            raw += text(name).raw + struct.pack("<I", len(tensor.shape))
            raw += b"".join(struct.pack("<Q", size) for size in reversed(tensor.shape))
            raw += struct.pack("<IQ", tensor.kind, at if tensor.offset is None else tensor.offset)
            at += -(-len(data_of(tensor)) // self.alignment) * self.alignment
        return raw

    def raw(self) -> bytes:
        raw = self.header()
        tensors = self.tensors.values() if isinstance(self.tensors, Mapping) else [t for _, t in self.tensors]
        raw += bytes(-len(raw) % self.alignment)
        for tensor in tensors:
            data = data_of(tensor)
            raw += data + bytes(-len(data) % self.alignment)
        return raw

    def write(self, path: Path) -> Path:
        path.write_bytes(self.raw())
        return path


def data_of(tensor: Tensor) -> bytes:
    if tensor.data is not None:
        return tensor.data
    types = {one.number: one for one in TYPES.values()}
    if tensor.kind not in types or prod(tensor.shape) > 1 << 20:
        return bytes(32)
    return bytes(types[tensor.kind].size(prod(tensor.shape)))


HIDDEN, LAYERS, HEADS, KV_HEADS, WIDE, VOCAB = 32, 2, 4, 2, 64, 48


def model(arch: str = "llama", *, biases: bool = False, tied: bool = False, kind: int = F32) -> File:
    """A tiny model with everything that it needs; `kind` is the type of its matrices."""
    metadata: dict[str, Any] = {
        "general.architecture": arch,
        f"{arch}.context_length": 128,
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.block_count": LAYERS,
        f"{arch}.feed_forward_length": WIDE,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": [f"token{number}" for number in range(VOCAB)],
        "tokenizer.ggml.scores": [float(-number) for number in range(VOCAB)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    rng = np.random.default_rng(5)
    block = {one.number: one for one in TYPES.values()}[kind]

    def matrix(rows: int, columns: int) -> Tensor:
        if kind == F32:
            return vector(rows, columns)
        raw = rng.integers(0, 100, block.size(rows * columns), dtype=np.uint8)  # no exponent of a NaN
        return Tensor((rows, columns), kind, raw.tobytes())

    def vector(*shape: int) -> Tensor:
        return Tensor(shape, F32, rng.standard_normal(shape, dtype=np.float32).tobytes())

    head = HIDDEN // HEADS
    tensors = {"token_embd.weight": matrix(VOCAB, HIDDEN), "output_norm.weight": vector(HIDDEN)}
    if not tied:
        tensors["output.weight"] = matrix(VOCAB, HIDDEN)
    for index in range(LAYERS):
        sizes = {
            "attn_q": (HEADS * head, HIDDEN), "attn_k": (KV_HEADS * head, HIDDEN),
            "attn_v": (KV_HEADS * head, HIDDEN), "attn_output": (HIDDEN, HEADS * head),
            "ffn_gate": (WIDE, HIDDEN), "ffn_up": (WIDE, HIDDEN), "ffn_down": (HIDDEN, WIDE),
        }  # fmt: skip
        for name, (rows, columns) in sizes.items():
            tensors[f"blk.{index}.{name}.weight"] = matrix(rows, columns)
            if biases or (arch == "qwen2" and name in ("attn_q", "attn_k", "attn_v")):
                tensors[f"blk.{index}.{name}.bias"] = vector(rows)
        tensors[f"blk.{index}.attn_norm.weight"] = vector(HIDDEN)
        tensors[f"blk.{index}.ffn_norm.weight"] = vector(HIDDEN)
        if arch == "qwen3":
            tensors[f"blk.{index}.attn_q_norm.weight"] = vector(head)
            tensors[f"blk.{index}.attn_k_norm.weight"] = vector(head)
    return File(metadata, tensors)
