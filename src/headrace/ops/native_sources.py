"""Whether the native kernels were built from the C++ sources beside this package. Only a checkout has any there.

Python calls the kernels by their current signatures. Kernels of other sources fail with a TypeError of the bindings, or
compute something else.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from headrace.errors import ConfigError

try:
    from headrace._build_info import SOURCES_SHA256
except ImportError:  # never installed, or built before the digest was written
    SOURCES_SHA256 = ""

CSRC = Path(__file__).resolve().parents[3] / "csrc"


def sources_digest(folder: Path) -> str:
    """SHA-256 of the C++ sources in a folder, without driver/ and hidden files; CMakeLists.txt computes the same.

    About 3 ms for csrc/.
    """
    digest = hashlib.sha256()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.*")}
    for name in sorted(files):
        if name.endswith((".cpp", ".h")) and not name.startswith("driver/") and files[name].name[0] != ".":
            digest.update(f"{name} {hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@functools.cache
def built_from_other_sources() -> bool:
    """True where there are sources and the kernels were built from others; read once."""
    return bool(SOURCES_SHA256) and CSRC.is_dir() and sources_digest(CSRC) != SOURCES_SHA256


OTHER_SOURCES = (
    f"the native kernels were built from other sources than those in {CSRC}; build them again: make native"
)


def check_sources() -> None:
    """Raises ConfigError where the kernels were built from other sources."""
    if built_from_other_sources():
        raise ConfigError(OTHER_SOURCES)
