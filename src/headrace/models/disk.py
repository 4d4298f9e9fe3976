"""Checks before a folder is written: its name, and free space."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from headrace.errors import ConfigError, ModelError

_MARGIN = 1 << 20
"""For what is small: configs, headers, the folder itself."""

TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
"""`errno` of a rename whose target exists."""


def check_new(folder: Path) -> None:
    """Raises ConfigError where something of that name is there, other than an empty folder, or where no folder can be
    given that name."""
    if folder.name in ("", ".."):
        raise ConfigError(f"{folder} has no name of its own: name a folder that is not there yet")
    try:
        is_folder = folder.is_dir() and not folder.is_symlink()
        if os.path.lexists(folder) and not (is_folder and not any(folder.iterdir())):
            raise ConfigError(f"{folder} is there already: name a folder that is not")
        if os.path.ismount(folder):
            raise ConfigError(f"{folder} is a mount point: name a folder in it")
        above = next(one for one in folder.absolute().parents if one.exists())
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror or error}") from error
    if not above.is_dir():
        raise ConfigError(f"{folder} cannot be made: {above} is not a folder")
    if not os.access(above, os.W_OK):
        raise ConfigError(f"{folder} cannot be made: nothing can be written into {above}")


def check_room(folder: Path, path: Path, size: int) -> None:
    """Raises ModelError, which names `folder`, where the disk of `path` has no room for `size` more bytes."""
    free = shutil.disk_usage(path).free
    if size + _MARGIN > free:
        raise ModelError(
            f"{folder} needs {gigabytes(size + _MARGIN)}, but its disk has {gigabytes(free)} free"
        )


def gigabytes(size: int) -> str:
    """In GB with two decimals, or in bytes where these would say little."""
    return f"{size / 1e9:.2f} GB" if size >= 10**8 else f"{size:,} bytes"
