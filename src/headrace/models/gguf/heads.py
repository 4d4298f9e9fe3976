"""Matrices of heads of latent attention, which llama.cpp's converter splits into those of keys and of values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CheckpointError
from headrace.gguf.files import GGUFModel
from headrace.gguf.reader import TensorInfo
from headrace.models.gguf.blocks import dequantize, floats
from headrace.models.weight_files import TensorEntry

_KEYS = re.compile(r"blk\.(0|[1-9]\d{0,5})\.attn_k_b\.weight")


@dataclass(frozen=True, slots=True)
class HeadMatrices:
    """The checkpoint's one tensor [heads * (key + value), latent], from the file's [heads, latent, key] and
    [heads, value, latent]."""

    model: GGUFModel
    keys: TensorInfo
    values: TensorInfo

    def entry(self, name: str) -> TensorEntry:
        heads, latent, key = self.keys.shape
        size = self.keys.end - self.keys.begin + self.values.end - self.values.begin
        rows = heads * (key + self.values.shape[1])
        return TensorEntry(name, "F32", (rows, latent), self.keys.begin, self.keys.begin + size)

    def array(self) -> NDArray[Any]:
        """Decoded."""
        keys, values = (self._decoded(info) for info in (self.keys, self.values))
        return np.concatenate((keys.swapaxes(1, 2), values), axis=1).reshape(-1, self.keys.shape[1])

    def _decoded(self, info: TensorInfo) -> NDArray[np.float32]:
        raw = np.frombuffer(self.model.view(info.name), dtype=np.uint8).reshape(-1, info.row_bytes)
        decoded = dequantize(raw, info.type) if info.type.quantized else floats(raw, info.type)
        return np.asarray(decoded, dtype=np.float32).reshape(info.shape)


def join_heads(model: GGUFModel, name: str) -> Mapping[str, HeadMatrices]:
    """By the checkpoint's names, `name` with the layer's number in place of {i}. Empty for files of other models, and
    for those of early 2025 and before, which have the tensor itself.

    Raises CheckpointError, naming the tensor, where the two do not belong together.
    """
    found = {}
    for stored in model.names():
        match = _KEYS.fullmatch(stored)
        if match is None:
            continue
        other = stored.replace("attn_k_b", "attn_v_b")
        keys, values = model.tensor(stored), model.tensor(other)
        assert keys is not None  # names come from the model
        if values is None:
            raise CheckpointError(f"{model.name} has tensor {stored} and lacks {other}")
        if len(keys.shape) != 3 or len(values.shape) != 3 or keys.shape[:2] != values.shape[::2]:
            raise CheckpointError(
                f"tensors {stored} and {other} in {model.name} have shapes {list(keys.shape)} and "
                f"{list(values.shape)}, which are not those of the same heads"
            )
        found[name.replace("{i}", match[1])] = HeadMatrices(model, keys, values)
    return found
