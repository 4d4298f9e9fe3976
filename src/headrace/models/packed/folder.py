"""The folder around packed weights: made under another name, with the model's config and tokenizer, and renamed
at the end."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import ConfigError, ModelError
from headrace.gguf.vocabulary import VOCABULARY_FILE
from headrace.models.disk import TAKEN, check_new, check_room
from headrace.models.hub.files import INDEX, side_files
from headrace.models.packed.header import HEADER_FILE
from headrace.models.source import ModelSource

_OWN = ("config.json", "generation_config.json")  # written from what was read, with overrides
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def new_folder(folder: Path, size: int) -> Iterator[Path]:
    """A folder that gets the name `folder` if the block ends without an exception, and is removed else.

    `size`: bytes that will be written, about. Raises ConfigError where the folder cannot be made, before the block
    runs, and ModelError where it cannot be written, as where the disk is full. What killed processes have left of the
    same folder is removed first.
    """
    check_new(folder)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        fresh.mkdir()
        held = os.open(fresh, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror or error}") from error
    try:
        _lock(held)
        check_room(folder, fresh, size)
        yield fresh
        try:
            fresh.rename(folder)
        except OSError as error:
            if error.errno in TAKEN:
                raise ModelError(
                    f"{folder} was made by another process meanwhile; nothing was kept"
                ) from error
            raise
    except OSError as error:
        why = "its disk is full" if error.errno in _FULL else error.strerror or str(error)
        raise ModelError(f"{folder} cannot be written: {why}; nothing was kept") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        os.close(held)


def _remove_leftovers(folder: Path) -> None:
    """What processes that were killed while they wrote `folder` have left: nobody holds a lock on it."""
    for leftover in folder.parent.glob(f".{glob.escape(folder.name)}.*.partial"):
        try:
            held = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if _lock(held):
                shutil.rmtree(leftover, ignore_errors=True)
        finally:
            os.close(held)


def _lock(opened: int) -> bool:
    """Lock an open folder until it is closed; False where it is locked, or where the file system has no locks."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def write_configs(folder: Path, source: ModelSource, eos_ids: Collection[int] | None = None) -> None:
    """The configs of a model as they are in effect; `eos_ids` take the place of those in them."""
    for name, text in config_texts(source, eos_ids).items():
        (folder / name).write_text(text, encoding="utf-8")


def config_texts(source: ModelSource, eos_ids: Collection[int] | None = None) -> dict[str, str]:
    """What `write_configs` writes, by the names of files."""
    settings = dict(source.generation_config)
    if eos_ids is not None:
        settings["eos_token_id"] = sorted(eos_ids)
    config, generation = _OWN
    found = {config: dict(source.config), **({generation: settings} if settings else {})}
    return {name: json.dumps(content, indent=2) + "\n" for name, content in found.items()}


def copy_tokenizer(folder: Path, tokenizer: Path) -> None:
    """The files of the tokenizer in another folder, as they are."""
    for name in tokenizer_files(tokenizer):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tokenizer / name, folder / name)


def tokenizer_files(tokenizer: Path) -> list[str]:
    """The names of those that `copy_tokenizer` copies."""
    found = [path for rule in ("*", "*/*") for path in tokenizer.glob(rule) if path.is_file()]
    names = [path.relative_to(tokenizer).as_posix() for path in found]
    chosen = (*side_files(names), *({VOCABULARY_FILE} & {*names}))
    return [name for name in chosen if name not in (*_OWN, INDEX, HEADER_FILE)]
