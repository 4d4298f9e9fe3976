"""A GGUF model: one file, or all parts of a split one, `NAME-00001-of-00003.gguf` and so on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError
from headrace.gguf.reader import GGUFFile, TensorInfo
from headrace.gguf.values import Metadata

MAX_PARTS = 1000

_PART = re.compile(
    r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ending>\.gguf)", re.ASCII | re.IGNORECASE
)
_NO_MODEL = re.compile(r"(?:^|[-_.])(?:mmproj|imatrix)[-_.]|^ggml-vocab[-_.]", re.IGNORECASE)
"""In names of files that come with models: vision encoders, statistics, vocabularies."""


@dataclass(frozen=True, slots=True)
class PartName:
    """A file's name as that of part `number` of `count`, counted from 1; `name` is what all parts begin with."""

    name: str
    number: int
    count: int
    ending: str  # ".gguf", in any case

    def other(self, number: int) -> str:
        """The name of another part."""
        return f"{self.name}-{number:05}-of-{self.count:05}{self.ending}"


def part_name(name: str) -> PartName | None:
    """What the name of a file, or its path, says of a part of a split model; None where it is not a part."""
    match = _PART.fullmatch(name)
    if match is None:
        return None
    return PartName(match["name"], int(match["number"]), int(match["count"]), match["ending"])


def names_model(name: str) -> bool:
    """Whether a file of that name, without its folders, holds a GGUF model or a part of one."""
    return name.lower().endswith(".gguf") and _NO_MODEL.search(name) is None


class GGUFModel:
    """All tensors of a model, from its one file or from its parts. Metadata is that of the first part."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or each part of the split file that `path` is a part of. Raises as GGUFFile does, and
        CheckpointError where parts are missing or do not belong together."""
        self.path = path
        self._files = [GGUFFile(part) for part in part_paths(path)]
        self._file_of: dict[str, GGUFFile] = {}
        _check_parts(self._files)
        for file in self._files:
            for name in file.tensors:
                if name in self._file_of:
                    other = self._file_of[name].path.name
                    raise CheckpointError(
                        f"tensor {name!r:.200} is stored in both {other} and {file.path.name}"
                    )
                self._file_of[name] = file
        _check_total(self._files, len(self._file_of))

    @property
    def name(self) -> str:
        """The first file's name, for messages."""
        return self._files[0].path.name

    @property
    def metadata(self) -> Metadata:
        return self._files[0].metadata

    def paths(self) -> list[Path]:
        """The files, in order."""
        return [file.path for file in self._files]

    def names(self) -> Iterable[str]:
        return self._file_of.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def tensor(self, name: str) -> TensorInfo | None:
        file = self._file_of.get(name)
        return None if file is None else file.tensors[name]

    def view(self, name: str) -> memoryview:
        """See GGUFFile.view; KeyError for a name that `tensor` does not know."""
        return self._file_of[name].view(name)

    def prefetch(self, name: str, first: int = 0, last: int | None = None) -> None:
        """See GGUFFile.prefetch."""
        self._file_of[name].prefetch(name, first, last)

    def drop(self, name: str, first: int = 0, last: int | None = None) -> None:
        """See GGUFFile.drop."""
        self._file_of[name].drop(name, first, last)


def part_paths(path: Path) -> list[Path]:
    """All files of the model that `path` is a file of, in order. Raises CheckpointError where one is missing."""
    part = part_name(path.name)
    if part is None:
        return [path]
    if not 1 <= part.number <= part.count <= MAX_PARTS:
        raise CheckpointError(
            f"{path.name} says that it is part {part.number} of {part.count}; up to {MAX_PARTS} parts can be read"
        )
    paths = [path.with_name(part.other(number)) for number in range(1, part.count + 1)]
    for number, one in enumerate(paths, 1):
        if not one.is_file():
            raise CheckpointError(
                f"part {number} of {part.count} is missing: {one.name} is not in {path.parent}"
            )
    return paths


def models_in(names: Sequence[str]) -> list[str]:
    """Of a folder's file names those that each stand for one GGUF model: split models by their first part."""
    found = []
    for name in sorted(names):
        if not names_model(name):
            continue
        part = part_name(name)
        if part is None or part.number == 1:
            found.append(name)
    return found


def _check_parts(files: Sequence[GGUFFile]) -> None:
    """Each part says which one it is, and of how many."""
    count = len(files)
    architecture = files[0].metadata.get("general.architecture")
    for index, file in enumerate(files):
        stated_count = _whole(file.metadata, "split.count", 1 if count == 1 else None, file.path.name)
        stated_index = _whole(file.metadata, "split.no", 0 if count == 1 else None, file.path.name)
        if stated_count != count and not (stated_count == 0 and count == 1):
            raise CheckpointError(
                f"{file.path.name} is one of {stated_count} parts, but its name says {count}: the files of a split "
                "model keep the names that they were given, NAME-00001-of-00003.gguf"
            )
        if stated_index != index:
            raise CheckpointError(
                f"{file.path.name} is part {stated_index + 1} by its metadata, and part {index + 1} by its name"
            )
        if file.metadata.get("general.architecture", architecture) != architecture:
            raise CheckpointError(f"{file.path.name} has another architecture than {files[0].path.name}")


def _check_total(files: Sequence[GGUFFile], total: int) -> None:
    stated = _whole(files[0].metadata, "split.tensors.count", total, files[0].path.name)
    if len(files) > 1 and stated != total:
        raise CheckpointError(f"{files[0].path.name} and its parts hold {total} tensors, but state {stated}")


def _whole(metadata: Mapping[str, Any], key: str, default: int | None, where: str) -> int:
    value = metadata.get(key, default)
    if value is None:
        raise CheckpointError(f"{where} has the name of a part of a split model, but lacks the key {key}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CheckpointError(f"{key} in {where} must be a whole number, got {value!r:.80}")
    return value
