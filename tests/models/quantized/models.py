"""Tiny models of the four families whose matrices are stored in the layout of a method."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.conformance.test_families import CASES as FAMILIES
from tests.conformance.test_families import Case as Family
from tests.models.quantized.packers import Case

FOUR = ("llama-gqa", "mistral-window", "qwen2-full", "qwen3-full")
"""One model of each family."""

MATRICES = (
    "_proj.weight",
    ".query_key_value.weight",
    ".dense.weight",
    "_to_4h.weight",
    "4h_to_h.weight",
    ".c_attn.weight",
    ".c_proj.weight",
    ".c_fc.weight",
)
"""What the names of a layer's matrices end with."""

SIZES = {"hidden_size": 64, "intermediate_size": 96}  # whole groups of 32, and words of 3-bit codes


def family(name: str) -> Family:
    return replace(FAMILIES[name], fields={**FAMILIES[name].fields, **SIZES})


def quantize(folder: Path, model: Any, case: Case, seed: int = 0) -> None:
    """Store the matrices of the layers of a saved model as `case` does, and give `model` those weights."""
    draw = np.random.default_rng(seed)
    tensors = load_file(folder / "model.safetensors")
    state = model.state_dict()
    for name in [name for name in tensors if name.endswith(MATRICES)]:
        rows, columns = tensors.pop(name).shape[:: -1 if ".c_" in name else 1]  # GPT-2 keeps them transposed
        parts, weights = case.pack(rows, columns, draw)
        tensors |= {name.removesuffix(".weight") + suffix: part for suffix, part in parts.items()}
        state[name].copy_(weights.T if ".c_" in name else weights)
    save_file(tensors, folder / "model.safetensors")
    describe(folder, quantization_config=case.config)


def describe(folder: Path, **fields: Any) -> None:
    """Change fields of a folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def change(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Put tensors into a folder's checkpoint, or take out those that are None."""
    tensors: dict[str, Any] = {**load_file(folder / "model.safetensors"), **changes}
    save_file(
        {name: part for name, part in tensors.items() if part is not None}, folder / "model.safetensors"
    )
