"""The profiles that `headrace calibrate` measured, in one file of the user's cache folder."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import tempfile
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.errors import ConfigError
from headrace.ops.cpu_features import detect
from headrace.sim.profile import VERSION, Profile

_native: ModuleType | None
try:
    from headrace import _native
except ImportError:
    _native = None

MAX_BYTES = 16 << 20
"""Of the file; a larger one was not written here."""


def profile_path() -> Path:
    """`headrace/profile.json` in $XDG_CACHE_HOME, or in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "headrace" / "profile.json"


def profile_key(kernels: str, threads: int) -> str:
    """What a measured profile holds for: the CPU, the instruction set, the threads, and the build of the kernels."""
    return f"{detect().brand or 'CPU'} | {kernels} | {threads} threads | build {_build()}"


def this_profile(
    kernels: str | None = None, threads: int | None = None, *, path: Path | None = None
) -> Profile | None:
    """The stored profile of this machine, or None: nothing was measured with these kernels and threads, or the kernels
    were built again since. None: the best kernels, all usable cores."""
    here = detect()
    if not here.kernels:
        return None
    stored = _read(path or profile_path())
    found = stored.get(profile_key(kernels or here.kernels[0], threads or here.cores.usable))
    try:
        return None if found is None else Profile.from_json(found)
    except ConfigError:
        return None


def store_profile(profile: Profile, *, path: Path | None = None) -> Path:
    """Keep a profile, in place of one with the same key. Raises ConfigError where the file cannot be written."""
    target = path or profile_path()
    profiles = {**_read(target), profile.key: profile.to_json()}
    new = target.with_suffix(f".{os.getpid()}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(
            json.dumps({"version": VERSION, "profiles": profiles}, indent=1) + "\n", encoding="utf-8"
        )
        new.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise ConfigError(f"the profile cannot be stored in {target}: {error.strerror}") from error
    return target


def check_store(*, path: Path | None = None) -> None:
    """Raises ConfigError, before anything is measured, where `store_profile` could write no file."""
    target = path or profile_path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
    except OSError as error:
        raise ConfigError(
            f"the profile cannot be stored in {target}: {error.strerror}; XDG_CACHE_HOME names another folder"
        ) from error


def read_profile(path: Path) -> Profile:
    """A profile that `headrace calibrate --output` wrote. Raises ConfigError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is too large for a profile")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the profile {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON, so it is not a profile") from error
    return Profile.from_json(data)


def _read(path: Path) -> dict[str, Any]:
    """Stored profiles by key; none where there is no file, or a damaged one, or one of another version."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    known = (
        isinstance(data, dict) and data.get("version") == VERSION and isinstance(data.get("profiles"), dict)
    )
    return dict(data["profiles"]) if known else {}


@functools.cache
def _build() -> str:
    """A checksum of the native kernels."""
    if _native is None or _native.__file__ is None:
        return "none"
    return f"{zlib.crc32(Path(_native.__file__).read_bytes()):08x}"
