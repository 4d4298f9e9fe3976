"""Writes a GGUF file with random weights; runs in an environment that has the `gguf` package.

    python -m benchmarks.families.random_file DESCRIPTION.json OUT.gguf

Codes are random and their scales constant, so a file of gigabytes takes seconds: nothing is quantized.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

_POOL_BLOCKS = 1 << 15
_DEVIATION = 0.02

Bytes = npt.NDArray[np.uint8]


def write(description: dict[str, Any], out: Path) -> None:
    """Write the file that `benchmarks.families.layout.file_of` describes."""
    writer = gguf.GGUFWriter(out, description["arch"])
    for name, value in description["metadata"].items():
        _add(writer, f"{description['arch']}.{name}", value)
    writer.add_tokenizer_model("none")  # prompts are token ids
    weights = Weights(0)
    for name, kind, shape in description["tensors"]:
        weights.add(writer, name, gguf.GGMLQuantizationType[kind], shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


class Weights:
    """Random tensors from one seed. Blocks of a type are slices of one pool."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._pools: dict[Any, Bytes] = {}

    def add(self, writer: Any, name: str, kind: Any, shape: Sequence[int]) -> None:
        """Vectors are one; those of the delta rule have values that its layers need."""
        if kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, self._floats(name, shape))
            return
        per_block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = self._blocks(kind, int(np.prod(shape)) // per_block)
        writer.add_tensor(name, raw.reshape(*shape[:-1], shape[-1] // per_block * size), raw_dtype=kind)

    def _floats(self, name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
        if name.endswith(".ssm_a"):
            return -np.linspace(1, 16, shape[0], dtype=np.float32)
        if name.endswith(".ssm_dt.bias"):
            return np.full(shape, -3, np.float32)
        if name.endswith("norm.weight"):
            return np.ones(shape, np.float32)
        return self._random.standard_normal(shape, dtype=np.float32) * np.float32(_DEVIATION)

    def _blocks(self, kind: Any, count: int) -> Bytes:
        if kind not in self._pools:
            self._pools[kind] = self._pool(kind)
        pool = self._pools[kind]
        start = int(self._random.integers(0, len(pool)))
        return np.tile(pool, (-(-(count + start) // len(pool)), 1))[start : start + count]

    def _pool(self, kind: Any) -> Bytes:
        """Blocks with random codes, and scales that give the weights their deviation; layouts in gguf/quants.py."""
        name = kind.name
        blocks = self._random.integers(0, 256, (_POOL_BLOCKS, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        if name in ("Q4_K", "Q5_K"):
            blocks[:, 0:2] = _half(_DEVIATION / 32 / (8 if name == "Q4_K" else 16))
            blocks[:, 2:4] = _half(_DEVIATION / 32)
        elif name == "Q6_K":
            blocks[:, 208:210] = _half(_DEVIATION / 32 / 64)
        elif name == "Q8_0":
            blocks[:, 0:2] = _half(_DEVIATION / 64)
        elif name == "MXFP4":
            blocks[:, 0] = 120  # a scale of 2^-7
        else:
            raise ValueError(f"there are no random blocks of {name}")
        return blocks


def _half(value: float) -> Bytes:
    return np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)


if __name__ == "__main__":
    write(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
