"""A hub with two repositories, and an empty cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import huggingface_hub.file_download as downloads
import pytest

from headrace.models.hub import transfer
from tests.models.hub import server
from tests.models.hub.server import Hub, Repository

BIG = bytes(range(256)) * 5000
"""The content of a large file; where it is cut shows."""


def gguf_repository() -> Repository:
    split = ("m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf")
    names = ("m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-F16.gguf", *split)
    files = {name: name.encode() + BIG for name in names}
    return Repository({"README.md": b"# m", ".gitattributes": b"*", **files})


def safetensors_repository() -> Repository:
    files = {
        "config.json": json.dumps({"model_type": "llama"}).encode(),
        "tokenizer.json": b"{}",
        "README.md": b"# s",
        "modeling.py": b"raise SystemExit",
        "pytorch_model.bin": b"pickle",
        "model.safetensors": b"weights" + BIG,
        "consolidated.safetensors": b"again" + BIG,
        "onnx/config.json": b"{}",
    }
    return Repository(files, commit="b" * 40)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """org/gguf and org/plain, and no pauses between requests."""
    with server.running() as started:
        started.repositories = {"org/gguf": gguf_repository(), "org/plain": safetensors_repository()}
        server.environment(monkeypatch, started, str(tmp_path / "cache"))
        monkeypatch.setattr(transfer, "PAUSE_S", 0.0)
        # What came of a chunk is lost where the connection ends: in tests that is at most 100 bytes.
        monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 100)
        monkeypatch.setattr(downloads, "time", SimpleNamespace(sleep=lambda seconds: None), raising=False)
        yield started


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
