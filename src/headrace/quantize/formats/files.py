"""The folder of a quantised model while it is being made: it has another name until it is whole, and keeps what a
killed process had finished."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace import __version__
from headrace.errors import ConfigError, ModelError
from headrace.evaluation.quality import remove_quality
from headrace.models.disk import TAKEN, check_new, check_room
from headrace.models.identity import weights_identity
from headrace.models.source import ModelSource
from headrace.quantize.formats.base import Form, Tensor

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

STATE = "quantize-state.json"
_FILES, _LAYERS, _PACKED = "files", "layers", "packed"
_COMMITTED = "committed"
_PART = ".part"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Unfinished:
    """The hidden folder beside `folder` in which that is made; see `open_unfinished`.

    path: of the hidden folder. state: what a killed process had finished, as `save` wrote it. files: what will be in
    `folder`. layers: for files that are needed until it is whole. packed: where `files` may be packed, to become
    `folder` in their place.
    """

    def __init__(self, folder: Path, path: Path, copies: int = 1) -> None:
        self.folder, self.path, self._copies = folder, path, copies
        self.files, self.layers, self.packed = path / _FILES, path / _LAYERS, path / _PACKED
        self.state = _read_state(path)

    def start(self, key: str, size: int) -> None:
        """Keep what an earlier try with the same `key` has left, and remove what one with another key has left, and
        pages about quality: `key` does not say what they were measured on.

        size: bytes that will be written, about. Raises ModelError where the disk has no room for them.
        """
        if self.state.get("key") != key or not self.files.is_dir() or _is_committed(self.path):
            (self.path / STATE).unlink(missing_ok=True)  # first: the files that it names are removed next
            for path in (self.files, self.layers, self.packed):
                shutil.rmtree(path, ignore_errors=True)
            self.state = {}
        if self.state.pop(_COMMITTED, None):
            self.save()
        there = 0
        for path in list(self.path.rglob("*")):
            if path.suffix == _PART:
                path.unlink()
            elif path.is_file():
                there += path.stat().st_size
        check_room(self.folder, self.path, size * self._copies - there)
        if not self.state:
            self.files.mkdir()
            self.state = {"key": key}
            self.save()
        remove_quality(self.files)
        self.layers.mkdir(exist_ok=True)

    def save(self) -> None:
        """Write `state`, so that it outlives the process."""
        _replace(self.path / STATE, [json.dumps(self.state).encode()])

    def commit(self, made: Path | None = None) -> None:
        """Give `files`, or `packed`, the name `folder`, and remove all else. Raises ModelError, and keeps all, where
        something else got that name meanwhile."""
        made = made or self.files
        self.state[_COMMITTED] = made.name
        self.save()
        try:
            made.rename(self.folder)
        except OSError as error:
            del self.state[_COMMITTED]
            self.save()
            if error.errno in TAKEN:
                raise ModelError(
                    f"{self.folder} was made by another process meanwhile; what was finished is {made}: rename it, or "
                    "move the other one away and give the same command again"
                ) from error
            raise
        _remove(self.path)

    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def resume_key(source: ModelSource, options: DataclassInstance, texts: Sequence[Sequence[int]]) -> str:
    """For `Unfinished.start`: the same for the same model, options and calibration texts, in this version."""
    facts = [
        __version__,
        asdict(options),
        weights_identity(source, 0).hex(),
        dict(source.config),
        [list(one) for one in texts],
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@contextmanager
def open_unfinished(folder: Path, copies: int = 1) -> Iterator[Unfinished]:
    """Where `folder` is made. Its name is there when `Unfinished.commit` has been called, and what was finished until
    an exception or a kill is kept for the next try. copies: of what is written, as many as the disk needs room for: 2
    where it is packed as well.

    Raises ConfigError where the folder cannot be made, is there, or another process writes it, and ModelError where it
    cannot be written, as where the disk is full.
    """
    check_absent(folder)
    path = _hidden(folder)
    held = _claim(folder, path)
    try:
        check_absent(folder)  # another process may have finished it meanwhile
        yield Unfinished(folder, path, copies)
    except OSError as error:
        why = "its disk is full" if error.errno in _FULL else error.strerror or str(error)
        kept = f"; the finished layers are in {path}, and the same command goes on from there"
        raise ModelError(
            f"{folder} cannot be written: {why}{kept if (path / STATE).exists() else ''}"
        ) from error
    finally:
        try:
            with suppress(OSError):
                path.rmdir()  # where nothing was begun
        finally:
            os.close(held)


def _claim(folder: Path, path: Path) -> int:
    """The hidden folder, opened and locked; it is made where it is not there."""
    try:
        while True:
            path.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process may have removed it: the loop makes it again
                held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                if not _lock(held):
                    os.close(held)
                    raise ConfigError(f"{folder} is being written by another process")
                if _is(held, path):
                    return held
                os.close(held)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror or error}") from error


def _is(opened: int, path: Path) -> bool:
    """Whether a folder that is open is still there by that name."""
    try:
        return os.path.samestat(os.fstat(opened), path.stat())
    except FileNotFoundError:
        return False


def check_absent(folder: Path) -> None:
    """As `models.disk.check_new`. What a process has left that was killed just after it had given the folder its name
    is removed."""
    try:
        check_new(folder)
    except ConfigError:
        if folder.name:
            _remove_committed(_hidden(folder))
        raise
    try:
        with suppress(FileNotFoundError):
            os.lstat(_hidden(folder))  # raises where that name is too long
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror or error}") from error


def _remove_committed(path: Path) -> None:
    with suppress(OSError):
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if _lock(held) and (_is_committed(path) or not any(path.iterdir())):
                _remove(path)
        finally:
            os.close(held)


def _is_committed(path: Path) -> bool:
    """Whether what was made in a hidden folder has left it, under its own name."""
    name = _read_state(path).get(_COMMITTED)
    return name in (_FILES, _PACKED) and not os.path.lexists(path / name)


def _remove(path: Path) -> None:
    """A hidden folder, its state last: a kill before that leaves what `check_absent` removes."""
    for one in path.iterdir():
        if one.is_dir():
            shutil.rmtree(one)
        elif one.name != STATE:
            one.unlink()
    (path / STATE).unlink(missing_ok=True)
    path.rmdir()


def _hidden(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.unfinished")


def _read_state(folder: Path) -> dict[str, Any]:
    """Empty where there is nothing that can be read."""
    try:
        found = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_tensors(path: Path, tensors: Sequence[Tensor]) -> None:
    """A safetensors file, whole or not at all; arrays are written one after the other, widest types first."""
    ordered = sorted(tensors, key=lambda one: _order(one.form))
    arrays = (np.ascontiguousarray(one.array).reshape(-1).view(np.uint8).data for one in ordered)
    _replace(path, itertools.chain([_header([one.form for one in ordered])], arrays))


def tensors_size(forms: Sequence[Form]) -> int:
    """Bytes of the file that `write_tensors` writes."""
    return len(_header(sorted(forms, key=_order))) + sum(one.size for one in forms)


def _order(form: Form) -> tuple[int, str]:
    return -form.itemsize, form.name


def _header(forms: Sequence[Form]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for one in forms:
        begin, end = end, end + one.size
        header[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _replace(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    fresh = path.with_name(path.name + _PART)
    with fresh.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _lock(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
