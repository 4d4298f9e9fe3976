"""Room on a disk, asked for before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.errors import ModelError

_MARGIN = 1 << 20
"""For what is small: configs, headers, the folder itself."""


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
