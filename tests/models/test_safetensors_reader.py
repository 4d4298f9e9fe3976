"""Truncated, lying and hostile checkpoints: each one clear error, at once, before anything is allocated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from headrace.errors import CheckpointError
from headrace.models.loader import as_tensor
from headrace.models.safetensors_reader import INDEX_FILE, Checkpoint, SafetensorsFile

Write = Callable[..., Path]


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_reads_what_safetensors_writes(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.randn(5).to(torch.bfloat16),
        "c": torch.randn(2, 1, 2).to(torch.float16),
        "d": torch.randn(2).double(),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(2.5),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = Checkpoint(tmp_path)
    assert set(checkpoint.names()) == set(tensors)
    for name, tensor in tensors.items():
        read = as_tensor(checkpoint.array(name))
        assert torch.equal(read, tensor) and read.dtype == tensor.dtype
    assert checkpoint.entry("nope") is None


def test_misaligned_data(tmp_path: Path, write_raw: Write) -> None:
    header = {"x": entry("U8", [1], [0, 1]), "y": entry("F32", [2], [1, 9])}
    data = b"\0" + torch.tensor([1.5, -2.0]).numpy().tobytes()
    file = SafetensorsFile(write_raw(tmp_path / "m.safetensors", header, data))
    assert file.array("y").tolist() == [1.5, -2.0]


def test_writing_to_a_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4)}, tmp_path / "model.safetensors")
    Checkpoint(tmp_path).array("a")[:] = 0
    assert Checkpoint(tmp_path).array("a").tolist() == [1.0] * 4


def test_dropped_pages_are_read_again(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(70_000), "b": torch.randn(3, 5), "empty": torch.zeros(0)}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    views = {name: as_tensor(checkpoint.array(name)) for name in tensors}
    for name, view in views.items():
        checkpoint.prefetch(name)
        assert torch.equal(view, tensors[name])
        checkpoint.drop(name)
        assert torch.equal(view, tensors[name])


HEADERS: dict[str, tuple[dict[str, Any] | bytes, str]] = {
    "not JSON": (b"{", "no valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', "no valid JSON"),
    "list": (b"[]", "not a list"),
    "number": (b"3", "not a int"),
    "deep": (b"[" * 200_000, "no valid JSON"),
    "long number": (b'{"a": ' + b"9" * 9000 + b"}", "no valid JSON"),
    "twice": (b'{"a": 1, "a": 2}', "twice"),
    "entry is a list": ({"a": []}, "not described by an object"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, "unknown dtype"),
    "strange dtype": ({"a": entry("F31")}, "unknown dtype"),
    "dtype is a list": ({"a": entry(["F32"])}, "unknown dtype"),  # type: ignore[arg-type]
    "negative shape": ({"a": entry(shape=[-2])}, "illegal shape"),
    "two negatives": ({"a": entry(shape=[-2, -1])}, "illegal shape"),
    "fractional shape": ({"a": entry(shape=[2.0])}, "illegal shape"),
    "bool shape": ({"a": entry(shape=[True, 2])}, "illegal shape"),
    "shape is text": ({"a": entry(shape="2")}, "illegal shape"),
    "too many dimensions": ({"a": entry(shape=[1] * 99)}, "illegal shape"),
    "huge dimension": ({"a": entry(shape=[2**80])}, "illegal shape"),
    "offsets outside": ({"a": entry(offsets=[0, 16], shape=[4])}, "truncated"),
    "offsets far outside": ({"a": entry(offsets=[2**60, 2**60 + 8])}, "truncated"),
    "offsets backwards": ({"a": entry(offsets=[8, 0])}, "truncated"),
    "negative offset": ({"a": entry(offsets=[-8, 0])}, "illegal data_offsets"),
    "three offsets": ({"a": entry(offsets=[0, 8, 8])}, "illegal data_offsets"),
    "a trillion elements": ({"a": entry(shape=[10**6, 10**6])}, "does not fill"),
    "product overflows": ({"a": entry(shape=[2**62, 2**62, 4])}, "does not fill"),
    "wrong item size": ({"a": entry("F16")}, "does not fill"),
    "overlap": ({"a": entry(), "b": entry(shape=[1], offsets=[4, 8])}, "overlaps"),
    "same bytes twice": ({"a": entry(), "b": entry()}, "overlaps"),
    "gap": ({"a": entry(shape=[1], offsets=[4, 8])}, "gap"),
    "unused tail": ({"a": entry(shape=[1], offsets=[0, 4])}, "after its last tensor"),
    "no tensors but data": ({}, "after its last tensor"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_bad_headers(name: str, tmp_path: Path, write_raw: Write) -> None:
    header, words = HEADERS[name]
    write_raw(tmp_path / "model.safetensors", header, b"\0" * 8)
    with pytest.raises(CheckpointError, match=words) as caught:
        Checkpoint(tmp_path)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [3, 1000, 10**8 + 1, 2**63, 2**64 - 1])
def test_header_length_is_checked_against_the_file(tmp_path: Path, write_raw: Write, length: int) -> None:
    write_raw(tmp_path / "model.safetensors", {"a": entry()}, b"\0" * 8, length=length)
    with pytest.raises(CheckpointError, match=r"states a header|no valid JSON"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("size", [0, 5, 8, 30, -1])
def test_truncated_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.randn(64)}, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError):
        Checkpoint(tmp_path)


def test_a_pointer_in_place_of_the_file(tmp_path: Path) -> None:
    """What cloning a model with Git, but without Git LFS, leaves behind."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 2471645608\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    with pytest.raises(CheckpointError, match=r"pointer of Git LFS, .*`git lfs pull`"):
        Checkpoint(tmp_path)


def test_integer_tensors_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.arange(4)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="stored as I64"):
        checkpoint.array("a")


def _shards(folder: Path, **shards: dict[str, torch.Tensor]) -> dict[str, str]:
    for name, tensors in shards.items():
        save_file(tensors, folder / f"{name}.safetensors")
    return {tensor: f"{name}.safetensors" for name, tensors in shards.items() for tensor in tensors}


def _write_index(folder: Path, content: Any) -> None:
    (folder / INDEX_FILE).write_text(json.dumps(content))


def test_shards(tmp_path: Path) -> None:
    a, b = torch.randn(2), torch.randn(3)
    _write_index(tmp_path, {"weight_map": _shards(tmp_path, one={"a": a}, two={"b": b})})
    checkpoint = Checkpoint(tmp_path)
    assert np.array_equal(checkpoint.array("a"), a) and np.array_equal(checkpoint.array("b"), b)


def test_missing_shard(tmp_path: Path) -> None:
    weight_map = _shards(tmp_path, one={"a": torch.ones(1)})
    _write_index(tmp_path, {"weight_map": {**weight_map, "b": "two.safetensors"}})
    with pytest.raises(CheckpointError, match=r"shard two\.safetensors .* is missing"):
        Checkpoint(tmp_path)


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    _shards(tmp_path, one={"a": torch.ones(1)}, two={"a": torch.ones(1), "b": torch.ones(1)})
    _write_index(tmp_path, {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
    with pytest.raises(CheckpointError, match="stored twice"):
        Checkpoint(tmp_path)


def test_tensor_not_where_the_index_says(tmp_path: Path) -> None:
    weight_map = _shards(tmp_path, one={"a": torch.ones(1)})
    _write_index(tmp_path, {"weight_map": {**weight_map, "b": "one.safetensors"}})
    with pytest.raises(CheckpointError, match="which lacks it"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "shard",
    [
        "../one.safetensors",
        "/etc/passwd",
        "sub/one.safetensors",
        "sub\\one.safetensors",
        "..",
        "one.bin",
        "one.safetensors\0.safetensors",
        "",
        7,
        None,
        ["one.safetensors"],
    ],
)
def test_shard_names_stay_in_the_folder(tmp_path: Path, shard: Any) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    _shards(tmp_path, one={"a": torch.ones(1)})
    _write_index(inner, {"weight_map": {"a": shard}})
    with pytest.raises(CheckpointError, match="not a file in its folder"):
        Checkpoint(inner)


@pytest.mark.parametrize("content", [[], {}, {"weight_map": []}, {"weight_map": {}}, 3, "x"])
def test_bad_index(tmp_path: Path, content: Any) -> None:
    _write_index(tmp_path, content)
    with pytest.raises(CheckpointError, match=r"weight_map|JSON object"):
        Checkpoint(tmp_path)


def test_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    with pytest.raises(CheckpointError, match="holds neither"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", INDEX_FILE])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_regular_file(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    """To open a pipe would wait for ever."""
    make(tmp_path / name)
    with pytest.raises(CheckpointError, match="it is not a regular file"):
        Checkpoint(tmp_path)
