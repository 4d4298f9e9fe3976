"""Split GGUF models: complete, consistent, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CheckpointError
from headrace.gguf.files import GGUFModel, models_in
from headrace.gguf.types import TYPES
from tests.gguf_bytes import File, Tensor, model

COUNT = 3


def part_name(number: int, count: int = COUNT) -> str:
    return f"m-{number:05}-of-{count:05}.gguf"


def split(folder: Path, change: Mapping[int, Mapping[str, Any]] | None = None) -> Path:
    """A model in three parts; `change` are keys of a part's metadata, None to leave one out."""
    whole = model()
    names = list(whole.tensors)
    for index in range(COUNT):
        metadata: dict[str, Any] = dict(whole.metadata) if index == 0 else {}
        metadata |= {"split.no": index, "split.count": COUNT, "split.tensors.count": len(names)}
        metadata |= (change or {}).get(index, {})
        tensors = {name: whole.tensors[name] for name in names[index::COUNT]}
        kept = {key: value for key, value in metadata.items() if value is not None}
        File(kept, tensors).write(folder / part_name(index + 1))
    return folder / part_name(1)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_part_opens_all(number: int, tmp_path: Path) -> None:
    first = split(tmp_path)
    whole = GGUFModel(model().write(tmp_path / "whole.gguf"))
    parts = GGUFModel(tmp_path / part_name(number))
    assert parts.name == first.name and [path.name for path in parts.paths()] == [
        part_name(index) for index in (1, 2, 3)
    ]
    assert set(parts.names()) == set(whole.names()) and parts.metadata["general.architecture"] == "llama"
    for name in whole.names():
        assert bytes(parts.view(name)) == bytes(whole.view(name))
        parts.prefetch(name)
        parts.drop(name)
    assert parts.tensor("none") is None and "none" not in parts and "output.weight" in parts


BAD: dict[str, tuple[dict[int, dict[str, Any]], str]] = {
    "order": (
        {1: {"split.no": 2}},
        r"m-00002-of-00003.gguf is part 3 by its metadata, and part 2 by its name",
    ),
    "count": ({2: {"split.count": 4}}, r"m-00003-of-00003.gguf is one of 4 parts, but its name says 3"),
    "no count": ({1: {"split.count": None}}, "m-00002-of-00003.gguf .*lacks the key split.count"),
    "no number": ({0: {"split.no": None}}, "lacks the key split.no"),
    "text": ({0: {"split.no": "0"}}, "split.no in m-00001-of-00003.gguf must be a whole number"),
    "total": ({0: {"split.tensors.count": 5}}, r"hold \d+ tensors, but state 5"),
    "architecture": (
        {2: {"general.architecture": "qwen2"}},
        "another architecture than m-00001-of-00003.gguf",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_parts_that_do_not_belong_together(name: str, tmp_path: Path) -> None:
    change, words = BAD[name]
    with pytest.raises(CheckpointError, match=words):
        GGUFModel(split(tmp_path, change))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = split(tmp_path)
    (tmp_path / part_name(2)).unlink()
    with pytest.raises(CheckpointError, match=r"part 2 of 3 is missing: m-00002-of-00003.gguf is not in"):
        GGUFModel(first)


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    first = split(tmp_path)
    second = tmp_path / part_name(2)
    metadata = {"split.no": 1, "split.count": COUNT}
    File(metadata, {"output_norm.weight": Tensor((32,)), "token_embd.weight": Tensor((4,))}).write(second)
    with pytest.raises(CheckpointError, match="is stored in both m-0000"):
        GGUFModel(first)


def test_a_renamed_part(tmp_path: Path) -> None:
    renamed = split(tmp_path).rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match=r"renamed.gguf is one of 3 parts, .*NAME-00001-of-00003.gguf"):
        GGUFModel(renamed)


@pytest.mark.parametrize("number", ["00000-of-00003", "00004-of-00003", "00001-of-99999", "00000-of-00000"])
def test_absurd_numbers_of_parts(number: str, tmp_path: Path) -> None:
    path = model().write(tmp_path / f"m-{number}.gguf")
    with pytest.raises(CheckpointError, match=r"says that it is part \d+ of \d+"):
        GGUFModel(path)


def test_the_types_of_parts_are_checked(tmp_path: Path) -> None:
    first = split(tmp_path)
    bad = File({"split.no": 2, "split.count": COUNT}, {"w": Tensor((1, 32), TYPES["Q8_0"].number, bytes(32))})
    replace(bad).write(tmp_path / part_name(3))
    with pytest.raises(CheckpointError, match=r"'w' in m-00003-of-00003.gguf ends at byte"):
        GGUFModel(first)


def test_models_of_a_folder() -> None:
    names = [
        "b-Q8_0.gguf", "a-00002-of-00002.gguf", "a-00001-of-00002.gguf", "mmproj-b.gguf", "b.mmproj.gguf",
        "imatrix_b.gguf", "b.txt", "C.GGUF",
    ]  # fmt: skip
    assert models_in(names) == ["C.GGUF", "a-00001-of-00002.gguf", "b-Q8_0.gguf"]
