"""The folder of a quantised model while it is being made: it has another name until it is whole, and keeps what a
killed process had finished."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import ConfigError, ModelError
from headrace.quantize.formats import Tensor

STATE = "quantize-state.json"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MARGIN = 1 << 20


@contextmanager
def unfinished_folder(folder: Path, size: int, key: str) -> Iterator[Path]:
    """A folder that gets the name `folder` if the block ends without an exception, and is kept for the next try else.

    What an earlier try with the same `key` has left in it is there again; what one with another key has left is
    removed. `size`: bytes that will be in it, about. Raises ConfigError where the folder cannot be made or another
    process writes it, and ModelError where it cannot be written, as where the disk is full.
    """
    if folder.is_symlink() or folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already: name a folder that is not")
    fresh = folder.with_name(f".{folder.name}.unfinished")
    try:
        fresh.mkdir(parents=True, exist_ok=True)
        held = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror or error}") from error
    try:
        if not _lock(held):
            raise ConfigError(f"{folder} is being written by another process")
        if read_state(fresh).get("key") != key:
            for path in fresh.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            write_state(fresh, {"key": key})
        for path in fresh.glob("*.part"):
            path.unlink()
        there = sum(path.stat().st_size for path in fresh.iterdir())
        free = shutil.disk_usage(fresh).free
        if size - there + _MARGIN > free:
            raise ModelError(f"{folder} needs {size / 1e9:.2f} GB, but its disk has {free / 1e9:.2f} GB free")
        yield fresh
        (fresh / STATE).unlink()
        fresh.rename(folder)
    except OSError as error:
        why = "its disk is full" if error.errno in _FULL else error.strerror or str(error)
        raise ModelError(
            f"{folder} cannot be written: {why}; the finished layers are in {fresh}, and the same command goes on "
            "from there"
        ) from error
    finally:
        os.close(held)


def read_state(folder: Path) -> dict[str, Any]:
    """What `write_state` wrote; empty where there is nothing that can be read."""
    try:
        found = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    _replace(folder / STATE, [json.dumps(state).encode()])


def write_tensors(path: Path, tensors: Sequence[Tensor]) -> None:
    """A safetensors file, whole or not at all; arrays are written one after the other, widest types first."""
    ordered = sorted(tensors, key=lambda one: (-one.array.itemsize, one.name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for one in ordered:
        begin, end = end, end + one.array.nbytes
        header[one.name] = {
            "dtype": one.dtype, "shape": list(one.array.shape), "data_offsets": [begin, end]
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    arrays = (np.ascontiguousarray(one.array).reshape(-1).view(np.uint8).data for one in ordered)
    _replace(path, itertools.chain([len(text).to_bytes(8, "little"), text], arrays))


def _replace(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    fresh = path.with_name(path.name + ".part")
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
