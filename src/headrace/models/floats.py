"""Conversions between the float types of checkpoints, in numpy, which has no bfloat16: uint16 holds its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_NAN = np.uint16(0x7FC0)


def to_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Floats of any type as float32; uint16 is taken as the bits of bfloat16."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Floats of any type as the bits of bfloat16, rounded to nearest even; uint16 is taken as such bits already."""
    if values.dtype == np.uint16:
        return values
    bits = values.astype(np.float32, copy=False).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    rounded[np.isnan(values)] = _NAN  # rounding up could carry a NaN into infinity or zero
    return rounded


def to_dtype(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """As float32, as float16, or as the bits of bfloat16, by the name of the type."""
    if dtype == "bfloat16":
        return to_bfloat16(values)
    return to_float32(values).astype(np.float16) if dtype == "float16" else to_float32(values)


ARRAY_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
"""The arrays that `to_dtype` gives."""
