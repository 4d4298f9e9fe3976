"""How checkpoints store weights as codes, and which packed format holds exactly the same weights.

Standard library only, because planning reads it. `quant.coded` says what codes mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace.quant.format import F32, GROUPS, WIDE_BF16, Activations, Storage, WeightFormat, dense_format

Table = Literal["integer", "nf4", "fp4", "e2m1", "e4m3", "e5m2"]
"""What a code stands for before it is scaled.

integer: a whole number. nf4: quantiles of a normal distribution (Dettmers et al. 2023, appendix E). fp4: the 4-bit
floats of bitsandbytes. e2m1: the 4-bit floats of OCP Microscaling (MX) 1.0. e4m3, e5m2: the 8-bit floats of OCP
OFP8; e4m3 has no infinities.
"""
Scale = Literal["f16", "bf16", "f32", "e8m0"]
"""Types of scales; e8m0 is a power of two, 2 ** (byte - 127), and NaN for 255 (OCP MX 1.0, 5.4.1)."""
Zero = Literal["none", "integer", "minimum"]

MAX_GROUP = 1 << 20
"""Most features with a common scale that a config may ask for."""

_EXACT_IN_BF16 = ("e2m1", "e4m3", "e5m2")


@dataclass(frozen=True, slots=True)
class CodeFormat:
    """How a matrix is stored as codes.

    bits: of a code. zero: "integer" is a code that stands for 0, "minimum" a float that is subtracted.
    group: input features with a common scale; None: all of them. rows: output features with a common scale; None: all.
    permuted: groups are runs of the input features in another order (activation order).
    """

    bits: int
    table: Table = "integer"
    scale: Scale = "f16"
    zero: Zero = "none"
    group: int | None = None
    rows: int | None = 1
    permuted: bool = False

    @property
    def name(self) -> str:
        """For reports: "4-bit integers with zeros, f16 scale a group of 128"."""
        codes = f"{self.bits}-bit integers" if self.table == "integer" else self.table
        zeros = {"none": "", "integer": " with zeros", "minimum": " with minima"}[self.zero]
        order = " in activation order" if self.permuted else ""
        return f"{codes}{zeros}, {self.scale} scale a {self._block()}{order}"

    def _block(self) -> str:
        if self.rows is None and self.group is None:
            return "matrix"
        if self.rows == 1:
            return "row" if self.group is None else f"group of {self.group}"
        return f"block of {self.rows or 'all'} x {self.group or 'all'}"


def native_format(stored: CodeFormat, activations: Activations) -> WeightFormat | None:
    """The packed format that holds exactly the weights of `stored`, or None where there is none.

    Codes of 2 and 3 bits become int4, those of 5 to 7 int8. Groups are cut into those that the kernels have.
    """
    if stored.table != "integer" or stored.zero == "minimum" or stored.scale != "f16" or stored.permuted:
        return None
    group = None
    if stored.group is not None:
        group = next((size for size in reversed(GROUPS) if stored.group % size == 0), 0)
    if stored.rows not in (1, None) or group == 0:
        return None
    storage: Storage = "int4" if stored.bits <= 4 else "int8"
    return WeightFormat(storage, group, stored.zero == "none", activations)


def common_format(formats: Sequence[WeightFormat]) -> WeightFormat:
    """The narrowest packed format that holds the weights of all of these, which differ in codes, groups, zeros.

    Parts of one product, such as q, k and v, are packed together.
    """
    groups = [one.group for one in formats]
    known = [size for size in groups if size is not None]
    widest = max(formats, key=lambda one: one.bits)
    return replace(
        widest,
        group=min(known) if known else None,
        symmetric=all(one.symmetric for one in formats),
    )


def float_format(stored: CodeFormat, dtype: str) -> WeightFormat:
    """Of a matrix of codes that is decoded: the narrowest floats with its exact weights where `dtype` is float32;
    bfloat16 rounds them."""
    if dtype != "float32":
        return dense_format(dtype)
    if stored.table in _EXACT_IN_BF16 and stored.scale == "e8m0":
        return WIDE_BF16  # at most 4 bits of mantissa, times a power of two
    return F32
