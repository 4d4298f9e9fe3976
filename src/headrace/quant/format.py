"""How a packed weight matrix is stored, and the names of the formats in options.

The layout itself is described in docs/kernels.md. Standard library only.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from headrace.errors import ConfigError

Storage = Literal[
    "f32", "bf16", "f16", "int8", "int6", "int5", "int4", "int3", "int2", "table4", "e4m3", "e5m2"
]
"""Floats, whole numbers, entries of a table of sixteen, and 8-bit floats."""
Activations = Literal["f32", "bf16", "int8"]

Table = Literal["integer", "nf4", "fp4", "e2m1", "e4m3", "e5m2", "iq4"]
"""What a code stands for before it is scaled.

integer: a whole number. nf4: quantiles of a normal distribution (Dettmers et al. 2023, appendix E). fp4: the 4-bit
floats of bitsandbytes. e2m1: the 4-bit floats of OCP Microscaling (MX) 1.0. e4m3, e5m2: the 8-bit floats of OCP
OFP8; e4m3 has no infinities. iq4: the sixteen whole numbers of GGUF's IQ4_NL and IQ4_XS.
"""
Scale = Literal["f16", "bf16", "f32", "e8m0", "super"]
"""Types of scales; e8m0 is a power of two, 2 ** (byte - 127), and NaN for 255 (OCP MX 1.0, 5.4.1). super, in packed
blocks of GGUF only: a number of one byte a group, times a float16 for each `SUPER` input features.
"""

PANEL = 16
"""Output features that lie side by side in a packed matrix."""
INPUT_ALIGN = 64
"""Input features are padded with zeros to a multiple of this."""

PAGE = 4096
"""Bytes of the system's memory pages; packed matrices are page-aligned."""

GROUPS = (32, 64, 128)
"""Sizes of a group of input features that share a scale, where weights are rounded to whole numbers."""
GROUP_STEP = 16
"""Groups of codes are multiples of this."""
SUPER = 256
"""Input features of a super-block."""

_BITS: dict[str, int] = {"f32": 32, "bf16": 16, "f16": 16, "table4": 4, "e4m3": 8, "e5m2": 8}
_BITS |= {f"int{bits}": bits for bits in (2, 3, 4, 5, 6, 8)}
_FLOATS = (("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32"), ("f16", "f32"))  # storage, activations
# int8 is grouped because its activations are: one large value in a row then coarsens 128 features, not the whole row.
# docs/quantization.md has the figures.
_DEFAULT_GROUP = 128
_SPAN = (
    128  # most features that share a scale of int8 activations, where weights do not share one for the row
)
_SCALE_BYTES: dict[Scale, int] = {"f16": 2, "bf16": 2, "f32": 4, "e8m0": 1}
_ZERO_BYTES, _ORDER_BYTES, _BIAS_BYTES = 1, 4, 4

_NAME = re.compile(r"(int8|int4)(?:-(channel|g(?:32|64|128)))?(-asym)?(-a16)?")
GRAMMAR = (
    "int8 or int4, then -g32, -g64, -g128 or -channel, then -asym, then -a16, each of them optional; "
    "or nf4, fp8, mxfp4 or mxfp4-a16; or q4_0, q4_1, q5_0, q5_1, q8_0, q2_k to q6_k, iq4_nl or iq4_xs"
)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A packed matrix's storage.

    group: input features that share a scale (and a zero), or None for one scale an output feature.
    symmetric: the zero lies in the middle of the codes; else every group has a zero of its own.
    activations: how the other factor is encoded: "int8" has a scale a row and span, "bf16" keeps it wider. Floats of
    16 bits that meet "f32" are widened, which is exact: the result is that of f32 storage, bit for bit.
    scale: the type of the scales of codes. table: what codes of "table4" stand for, else None.
    ordered: columns are in an order of their own (activation order), which the matrix holds.
    minima: every group has a float that is added. blocks: the type, in lower case, of the blocks of a GGUF file that
    are packed as they are; "" for all others, and for MXFP4, whose packed form arrays have too.
    """

    storage: Storage
    group: int | None = None
    symmetric: bool = True
    activations: Activations = "int8"
    scale: Scale = "f16"
    table: Literal["nf4", "fp4", "e2m1", "iq4"] | None = None
    ordered: bool = False
    minima: bool = False
    blocks: str = ""

    def __post_init__(self) -> None:
        if not self.quantized:
            plain = self.group is None and self.symmetric and self.scale == "f16" and not self.ordered
            if not plain or (self.storage, self.activations) not in _FLOATS:
                raise ConfigError(f"{self.storage} weights have no groups, zeros or other activations")
            return
        if self.group is not None and (self.group <= 0 or self.group % GROUP_STEP):
            raise ConfigError(
                f"weights are grouped by multiples of {GROUP_STEP} input features, not by {self.group}"
            )
        if self.activations not in ("int8", "bf16"):
            raise ConfigError(f"{self.storage} weights take int8 or bf16 activations")
        integers = self.storage.startswith("int")
        if (self.table is None) == (self.storage == "table4") or not (integers or self.symmetric):
            raise ConfigError(f"{self.storage} weights have another table, or no zeros")
        if self.activations == "int8" and not (integers or self.table in ("e2m1", "iq4")):
            raise ConfigError(f"{self.table or self.storage} weights take bf16 activations")

    @property
    def quantized(self) -> bool:
        return self.storage not in ("f32", "bf16", "f16")

    @property
    def span(self) -> int | None:
        """Input features of int8 activations that share a scale; None: a whole row."""
        return None if self.group is None else math.gcd(self.group, _SPAN)

    @property
    def name(self) -> str:
        """As `parse_format` reads it: "int4-g64-asym-a16", without defaults; floats as in `FLOAT_FORMATS`.

        Formats that only checkpoints have may end in the type of their scales, and in "ordered". Blocks of GGUF files
        have the name of their type, "q4_k".
        """
        if self.blocks:
            return self.blocks
        if not self.quantized:
            return "bf16-a32" if (self.storage, self.activations) == ("bf16", "f32") else self.storage
        stem = _STEMS.get(self.table or self.storage, self.storage)
        usual = OTHER_FORMATS.get(stem, _USUAL)
        parts: list[str] = [stem]
        if self.group != usual.group:
            parts.append("channel" if self.group is None else f"g{self.group}")
        if not self.symmetric:
            parts.append("asym")
        if self.activations == "bf16" and usual.activations != "bf16":
            parts.append("a16")
        if self.scale != usual.scale:
            parts.append(f"{self.scale}-scales")
        return "-".join([*parts, "ordered"] if self.ordered else parts)

    @property
    def bits(self) -> int:
        """Bits of one code, or of one number."""
        return _BITS[self.storage]

    @property
    def bits_per_weight(self) -> float:
        """With scales and zeros, for a matrix of many input features and no padding."""
        if self.group is None:
            return self.bits
        features = self.group * SUPER  # whole groups and whole super-blocks
        return self.bits + 8 * sum(self._beside(features)) / features

    def packed_bytes(
        self, rows: int, cols: int, *, gated: bool = False, bias: bool = False, experts: int | None = None
    ) -> int:
        """Bytes of a packed matrix [rows, cols], padding, scales, zeros and bias included, each in whole pages.

        `gated`: rows are those of gate and of up, half each, and both are padded to whole panels. `experts`: so many of
        them in one.
        """
        panels = (experts or 1) * (2 * -(-(rows // 2) // PANEL) if gated else -(-rows // PANEL))
        padded = -(-cols // INPUT_ALIGN) * INPUT_ALIGN
        arrays = [panels * PANEL * padded * self.bits // 8]
        if self.quantized:
            arrays += [panels * PANEL * size for size in self._beside(padded)]
            if self.ordered:
                arrays.append(cols * _ORDER_BYTES)
        if bias:
            arrays.append(panels * PANEL * _BIAS_BYTES)
        return sum(-(-size // PAGE) * PAGE for size in arrays)

    def _beside(self, columns: int) -> list[int]:
        """Bytes of each array beside the codes, for one output feature: scales, then zeros or minima."""
        groups = 1 if self.group is None else -(-columns // self.group)
        if self.scale == "super":
            return [(2 * columns // SUPER + groups) * (2 if self.minima else 1)]
        size = _SCALE_BYTES[self.scale]
        others = size if self.minima else 0 if self.symmetric else _ZERO_BYTES
        return [groups * size] + ([groups * others] if others else [])

    def describe(self) -> str:
        """A description for reports."""
        if not self.quantized:
            widened = self.bits == 16 and self.activations == "f32"
            kind = (
                "bfloat16, computed in float32" if self.storage == "bf16" else "float16, computed in float32"
            )
            return kind if widened else f"{self.bits}-bit floats"
        grouped = "one scale an output feature" if self.group is None else f"groups of {self.group}"
        zeros = "with minima" if self.minima else "symmetric" if self.symmetric else "with zero points"
        kind = _STEMS.get(self.table or self.storage, "codes")
        codes = f"{self.bits}-bit {kind}, {grouped}, {zeros}, {self.activations} activations"
        return f"GGUF {self.blocks.upper()}: {codes}" if self.blocks else codes


@dataclass(frozen=True)
class WeightFormats:
    """The packed format of each matrix of a model.

    usual: of every matrix that `others` does not name. others: (name of a `WeightRef`, format) pairs.
    kept: names of matrices whose codes are those of the checkpoint. decoded: (name, how the checkpoint stores it)
    of those whose codes no kernel reads, so that they are floats in memory. exact: (name, format) of matrices that are
    floats whatever the others are.
    """

    usual: WeightFormat
    others: tuple[tuple[str, WeightFormat], ...] = ()
    kept: frozenset[str] = frozenset()
    decoded: tuple[tuple[str, str], ...] = ()
    exact: tuple[tuple[str, WeightFormat], ...] = ()

    def of(self, name: str) -> WeightFormat:
        """The format of the matrix with that name."""
        return self._by_name.get(name, self.usual)

    def keeps_table(self, name: str) -> bool:
        """Whether a table of that name, or the table that a head is too, is packed in the head's format."""
        return self.of(name).quantized and name in self.kept

    @property
    def main(self) -> WeightFormat:
        """The format that represents the model: the usual one of the matrices that `others` names, if any."""
        counts = Counter(one for _, one in self.others)
        return counts.most_common(1)[0][0] if counts else self.usual

    @property
    def all(self) -> tuple[WeightFormat, ...]:
        """Every format in use, each once."""
        return tuple(dict.fromkeys((self.usual, *(one for _, one in (*self.others, *self.exact)))))

    def __str__(self) -> str:
        """Formats with the number of matrices: "42 x int4, others bf16"."""
        counts = Counter(one.name for _, one in self.others)
        named = [f"{count} x {name}" for name, count in counts.most_common()]
        return ", ".join([*named, f"others {self.usual.name}"]) if named else self.usual.name

    @cached_property
    def _by_name(self) -> Mapping[str, WeightFormat]:
        return dict((*self.others, *self.exact))


ACTIVATION_NAMES: Mapping[str, Activations] = {"a8": "int8", "a16": "bf16"}
"""Values of the option `quantization` that only say how activations meet the codes of a quantised checkpoint."""


_STEMS = {"nf4": "nf4", "fp4": "fp4", "iq4": "iq4", "e2m1": "mxfp4", "e4m3": "fp8", "e5m2": "fp8-e5m2"}
_USUAL = WeightFormat("int4", _DEFAULT_GROUP)

OTHER_FORMATS = {
    "nf4": WeightFormat("table4", 64, activations="bf16", table="nf4"),
    "fp4": WeightFormat("table4", 64, activations="bf16", table="fp4"),
    "mxfp4": WeightFormat("table4", 32, scale="e8m0", table="e2m1"),
    "fp8": WeightFormat("e4m3", None, activations="bf16", scale="f32"),
    "fp8-e5m2": WeightFormat("e5m2", None, activations="bf16", scale="f32"),
}
"""Formats of codes that are not whole numbers, by name."""
_ROUNDED = {name: OTHER_FORMATS[name] for name in ("nf4", "fp8", "mxfp4")}
_ROUNDED["mxfp4-a16"] = replace(_ROUNDED["mxfp4"], activations="bf16")

F32 = WeightFormat("f32", activations="f32")
BF16 = WeightFormat("bf16", activations="bf16")
WIDE_BF16 = WeightFormat("bf16", activations="f32")
WIDE_F16 = WeightFormat("f16", activations="f32")

_BY_TYPES = {
    ("float32", "float32"): F32,
    ("float32", "bfloat16"): WIDE_BF16,
    ("float32", "float16"): WIDE_F16,
    ("bfloat16", "bfloat16"): BF16,
}

FLOAT_FORMATS = {one.name: one for one in (F32, BF16, WIDE_BF16, WIDE_F16)}
"""Packed floats by name."""


def dense_format(dtype: str, stored: str | None = None) -> WeightFormat:
    """The packed form of weights that are not quantised, by compute type "float32" or "bfloat16".

    `stored`: the type in which they lie in memory where that is not the compute type: float32 also meets 16 bits.
    """
    return _BY_TYPES[dtype, stored or dtype]


def parse_format(text: str) -> WeightFormat:
    """A quantised format from its name, in upper or lower case: the codes, then the group, then -asym, then -a16.

    "int8" and "int4" have groups of 128; -channel has one scale an output feature; -a16 keeps activations in bf16.
    "nf4" has groups of 64, "mxfp4" of 32, "fp8" one scale an output feature. Raises ConfigError for any other text.
    """
    if text.lower() in _ROUNDED:
        return _ROUNDED[text.lower()]
    match = _NAME.fullmatch(text.lower())
    if match is None:
        raise ConfigError(f"quantization {text!r:.80} is none of the formats here: {GRAMMAR}")
    storage: Storage = "int8" if match[1] == "int8" else "int4"
    _, grouping, asymmetric, wide = match.groups()
    group: int | None = _DEFAULT_GROUP
    if grouping is not None:
        group = None if grouping == "channel" else int(grouping[1:])
    return WeightFormat(storage, group, asymmetric is None, "int8" if wide is None else "bf16")
