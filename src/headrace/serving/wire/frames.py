"""Frames on a byte stream: four bytes of length, little-endian, then so many bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAX_FRAME_BYTES = 256 * 2**20
"""Largest frame; a longer one is an error of the connection, found before anything is allocated for it."""

_HEADER = struct.Struct("<I")


class WireError(Exception):
    """What came over a connection is not what this protocol sends, or what should go cannot be written."""


def frame(payload: bytes, limit: int = MAX_FRAME_BYTES) -> bytes:
    """The payload with its length in front. Raises WireError above `limit` bytes."""
    if len(payload) > limit:
        raise WireError(f"a message of {len(payload)} bytes is larger than {limit}")
    return _HEADER.pack(len(payload)) + payload


class FrameBuffer:
    """Cuts a byte stream into frames, wherever its pieces were cut."""

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add a piece of the stream; yields the payload of every frame that is complete now.

        Raises WireError for a frame that announces more than the limit; the stream is of no use after that.
        """
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= _HEADER.size:
                (length,) = _HEADER.unpack_from(self._data, start)
                if length > self._limit:
                    raise WireError(f"a frame announces {length} bytes; at most {self._limit} are allowed")
                end = start + _HEADER.size + length
                if len(self._data) < end:
                    break
                yield bytes(self._data[start + _HEADER.size : end])
                start = end
        finally:
            del self._data[:start]

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._data)
