"""An identity of a model's weights, computed without reading all of them. No torch here."""

from __future__ import annotations

import hashlib

from headrace.models.packed.header import is_packed, read_header
from headrace.models.source import ModelSource
from headrace.models.stored import open_files

EXCERPTS = 4
"""Places of each tensor that are read, the first and the last bytes among them."""
EXCERPT_BYTES = 256


def weights_identity(source: ModelSource, seed: int) -> bytes:
    """SHA-256 that identifies the weights of a model; `seed` is that of random ones.

    For a checkpoint: of each tensor its name, type, shape and some of its bytes, and of each file its size and the
    time of its last change. So a change of any tensor gives another identity, as does a copy that does not keep that
    time. For a packed folder: its header, which holds a checksum of every weight. Raises CheckpointError where the
    files cannot be read.
    """
    found = hashlib.sha256()
    if source.path is not None and is_packed(source.path):  # its header holds a checksum of every weight
        found.update(b"packed" + read_header(source.path).digest)
        return found.digest()
    checkpoint = open_files(source)
    if checkpoint is None:
        found.update(repr(("random", source.name, sorted(source.config.items()), seed)).encode())
        return found.digest()
    for path in checkpoint.paths():
        state = path.stat()
        found.update(repr((path.name, state.st_size, state.st_mtime_ns)).encode())
    for name in sorted(checkpoint.names()):
        entry = checkpoint.entry(name)
        assert entry is not None
        found.update(repr((name, entry.dtype, entry.shape)).encode())
        room = max(0, entry.end - entry.begin - EXCERPT_BYTES)
        for part in range(EXCERPTS):
            found.update(checkpoint.excerpt(name, room * part // (EXCERPTS - 1), EXCERPT_BYTES))
        checkpoint.drop(name)  # the system maps much more than an excerpt, which would count as memory in use
    return found.digest()
