"""Vectors of requests with `pooling`, as bytes and as numbers. Source: `CoreOutput.pooled`, float32, little-endian."""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence


def floats(data: bytes) -> array.array[float]:
    """The numbers of a core output's `pooled`: float32, little-endian."""
    values = array.array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def packed(vector: array.array[float]) -> bytes:
    """The bytes of a vector; OpenAI's base64 form holds the same bytes."""
    if sys.byteorder == "little":
        return vector.tobytes()
    swapped = array.array("f", vector)
    swapped.byteswap()
    return swapped.tobytes()


def shaped(vector: Sequence[float], dimensions: int | None, normalize: bool) -> array.array[float]:
    """The first `dimensions` numbers, scaled to length 1 if asked; a vector of zeros stays as it is."""
    kept = array.array("f", vector if dimensions is None else vector[:dimensions])
    if not normalize:
        return kept
    length = math.sqrt(math.fsum(value * value for value in kept))
    return kept if length == 0.0 else array.array("f", (value / length for value in kept))
