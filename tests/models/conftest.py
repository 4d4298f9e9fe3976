"""Configs and safetensors files to break."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

Config = dict[str, Any]


@pytest.fixture
def llama_config() -> Config:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 40,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
    }


@pytest.fixture
def write_raw() -> Callable[..., Path]:
    """Write a safetensors file from a header (a dict, or bytes as they are) and data bytes."""

    def write(
        path: Path, header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None
    ) -> Path:
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
        return path

    return write


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tests share a small machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
