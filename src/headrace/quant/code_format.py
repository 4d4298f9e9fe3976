"""How checkpoints store weights as codes, and which packed format holds exactly the same weights.

Standard library only, because planning reads it. `quant.coded` says what codes mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.quant.format import (
    F32,
    GROUP_STEP,
    WIDE_BF16,
    Activations,
    Scale,
    Storage,
    Table,
    WeightFormat,
    dense_format,
)

Zero = Literal["none", "integer", "minimum"]

MAX_GROUP = 1 << 20
"""Most features with a common scale that a config may ask for."""

_EXACT_IN_BF16 = ("e2m1", "e4m3", "e5m2")


@dataclass(frozen=True, slots=True)
class CodeFormat:
    """How a matrix is stored as codes.

    bits: of a code. zero: "integer" is a code that stands for 0, "minimum" a float that is subtracted.
    group: input features with a common scale; None: all of them. rows: output features with a common scale; None: all.
    order: groups are runs of the input features in another order (activation order), whose checksum this is; 0: in
    their own order. blocks: the type, in lower case, of a GGUF file's blocks, which hold codes and scales together;
    scales of such a format are "super" where they are products.
    """

    bits: int
    table: Table = "integer"
    scale: Scale = "f16"
    zero: Zero = "none"
    group: int | None = None
    rows: int | None = 1
    order: int = 0
    blocks: str = ""

    @property
    def name(self) -> str:
        """For reports: "4-bit integers with zeros, f16 scale a group of 128", or a type of blocks, "Q4_K"."""
        if self.blocks:
            return self.blocks.upper()
        codes = f"{self.bits}-bit integers" if self.table == "integer" else self.table
        zeros = {"none": "", "integer": " with zeros", "minimum": " with minima"}[self.zero]
        order = " in activation order" if self.order else ""
        return f"{codes}{zeros}, {self.scale} scale a {self._block()}{order}"

    def _block(self) -> str:
        if self.rows is None and self.group is None:
            return "matrix"
        if self.rows == 1:
            return "row" if self.group is None else f"group of {self.group}"
        return f"block of {self.rows or 'all'} x {self.group or 'all'}"


def native_format(stored: CodeFormat, activations: Activations) -> WeightFormat | None:
    """The packed format that holds the codes of `stored`, or None where there is none.

    The weights are exactly the same, except the tables of NF4 and of bitsandbytes' FP4, whose entries are bfloat16.
    Floats of 8 bits and those two tables meet bf16 activations only. Minima, and scales of scales, are for blocks that
    are packed as they are, which int8 activations meet.
    """
    whole = bool(stored.blocks) and activations == "int8"
    minima = stored.zero == "minimum"
    if (minima and not whole) or (stored.group is not None and stored.group % GROUP_STEP):
        return None
    storage: Storage
    table: Literal["nf4", "fp4", "e2m1", "iq4"] | None = None
    if stored.table == "integer":
        storage = _integers(stored, activations)
    elif stored.table == "e4m3" or stored.table == "e5m2":
        storage, activations = stored.table, "bf16"
    else:
        storage, table = "table4", stored.table
        activations = activations if table in ("e2m1", "iq4") else "bf16"
    return WeightFormat(
        storage,
        stored.group,
        stored.zero != "integer",
        activations,
        "f32" if stored.scale == "super" and not whole else stored.scale,
        table,
        bool(stored.order),
        minima,
        stored.blocks if whole and table != "e2m1" else "",  # MXFP4 is one format, in blocks or in arrays
    )


def _integers(stored: CodeFormat, activations: Activations) -> Storage:
    """The narrowest storage: planes of odd bits need groups of 32, or of 16 with int8 activations."""
    group = stored.group or 32
    plane = group % 32 == 0 or (group == 16 and activations == "int8")
    names: dict[int, Storage] = {2: "int2", 3: "int3" if plane else "int4", 4: "int4"}
    names |= {5: "int5" if plane else "int6", 6: "int6"}
    return names.get(stored.bits, "int8")


def float_format(stored: CodeFormat, dtype: str) -> WeightFormat:
    """Of a matrix of codes that is decoded: the narrowest floats with its exact weights where `dtype` is float32;
    bfloat16 rounds them."""
    if dtype != "float32":
        return dense_format(dtype)
    if stored.table in _EXACT_IN_BF16 and stored.scale == "e8m0":
        return WIDE_BF16  # at most 4 bits of mantissa, times a power of two
    return F32
