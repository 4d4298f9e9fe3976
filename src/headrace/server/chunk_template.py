"""Events of one stream that differ in a text alone: encoded once, and filled in for every token."""

from __future__ import annotations

from json.encoder import encode_basestring

from headrace.server.events import Chunk, event

HOLE = "\ue000text\ue000"
"""Stands for the text in the chunk that a template is made from; of a plane that no text uses."""

_HOLE = encode_basestring(HOLE).encode()


class ChunkTemplate:
    """Made from a chunk that holds HOLE once, as a whole value. Raises ValueError for any other."""

    __slots__ = ("_after", "_before")

    def __init__(self, chunk: Chunk) -> None:
        self._before, self._after = event(chunk).split(_HOLE)

    def event(self, text: str) -> bytes:
        """The event of the chunk with this text in the place of HOLE."""
        return self._before + encode_basestring(text).encode() + self._after
