"""GPTQ (Frantar et al. 2022) as AutoGPTQ, GPTQModel and AutoRound write it.

For a weight [R, C] of b bits: `qweight` int32 [C * b / 32, R], each column a run of bits, lowest first; `qzeros` int32
[groups, R * b / 32]; `scales` [groups, R]; `g_idx` int32 [C], the group of each input feature, which is not its place
where columns were quantised in the order of their activations. weight = scale * (code - zero); version 1 of
the format stores zero - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.quantized.layout import (
    FLOATS,
    Layout,
    Matrix,
    Method,
    Stored,
    groups_of,
    order_number,
    sort_by_group,
)
from headrace.models.quantized.patterns import check_patterns, matches
from headrace.quant.code_format import MAX_GROUP, CodeFormat
from headrace.quant.coded import Coded
from headrace.quant.format import Scale
from headrace.quant.unpack import stream_of_words

BITS = (2, 3, 4, 8)
VERSIONS = {"gptq": 1, "gptq_v2": 2}


@dataclass(frozen=True, slots=True)
class GPTQ:
    """`group` None: the whole row. ordered: columns may have been quantised in the order of their activations."""

    bits: int
    group: int | None
    version: int = 1
    ordered: bool = False
    codes = ".qweight"

    def stored(self, rows: int, columns: int) -> tuple[Stored, ...]:
        if rows * self.bits % 32 or columns * self.bits % 32:
            raise ValueError(f"{rows} x {columns} codes of {self.bits} bits do not fill words of 32 bits")
        groups = groups_of(columns, self.group)
        return (
            Stored(".qweight", ((columns * self.bits // 32, rows),), ("I32",)),
            Stored(".qzeros", ((groups, rows * self.bits // 32),), ("I32",)),
            Stored(".scales", ((groups, rows),), tuple(FLOATS)),
            Stored(".g_idx", ((columns,),), ("I32", "I64"), required=self.ordered),
        )

    def format(self, matrix: Matrix) -> CodeFormat:
        return self._format(matrix, matrix.scales(".scales")[1])

    def _format(self, matrix: Matrix, scale: Scale) -> CodeFormat:
        centred = bool((self._zeros(matrix) == 1 << (self.bits - 1)).all())
        return CodeFormat(
            self.bits,
            scale=scale,
            zero="none" if centred else "integer",
            group=self.group,
            order=order_number(self._order(matrix)),
        )

    def decode(self, matrix: Matrix) -> Coded:
        scales, kind = matrix.scales(".scales")
        format, order = self._format(matrix, kind), self._order(matrix)
        words = np.ascontiguousarray(matrix.read(".qweight").T)
        codes = stream_of_words(words, self.bits, matrix.columns)
        return Coded(
            format,
            codes if order is None else np.ascontiguousarray(codes[:, order]),
            np.ascontiguousarray(scales.T),
            self._zeros(matrix).T if format.zero == "integer" else None,
            order,
        )

    def _zeros(self, matrix: Matrix) -> NDArray[np.uint8]:
        """[groups, R]. A zero of 0 was stored as -1 in version 1: the sum stays within the bits."""
        zeros = stream_of_words(matrix.read(".qzeros"), self.bits, matrix.rows)
        if self.version == 1:
            zeros = (zeros + np.uint8(1)) & np.uint8((1 << self.bits) - 1)
        return zeros

    def _order(self, matrix: Matrix) -> NDArray[np.int64] | None:
        """The input features sorted by group, or None where they are in order already."""
        if ".g_idx" not in matrix.entries or self.group is None:
            return None
        return sort_by_group(matrix, ".g_idx", matrix.read(".g_idx").astype(np.int64), self.group)


def read_gptq(config: ConfigReader) -> Method:
    """The method of a `quantization_config` with `quant_method` "gptq"."""
    layout = read_layout(config)
    overrides = _read_dynamic(config)
    head = config.flag("lm_head", False)

    def of_module(module: str) -> Layout | None:
        for pattern, fields in overrides.items():
            if matches(pattern, module):
                return (
                    None
                    if fields is None
                    else read_layout(ConfigReader({**config.fields, **fields}, config.where))
                )
        return layout if head or not module.endswith("lm_head") else None

    return Method("gptq", of_module)


def read_layout(config: ConfigReader) -> GPTQ:
    """Bits, groups and version of a config, or of its override for some modules."""
    if config.flag("is_marlin_format", False):
        raise UnsupportedModel(
            f"{config.where} asks for the layout of Marlin, which only its GPU kernel reads"
        )
    stored_as = config.text("checkpoint_format", "gptq")
    if stored_as not in VERSIONS:
        raise UnsupportedModel(
            f"checkpoint_format {stored_as!r:.80} in {config.where} is not supported, only {', '.join(VERSIONS)}"
        )
    config.only("pack_dtype", ("int32",), "int32")
    config.only("bits", BITS, None)
    config.only("data_type", ("int",), "int")
    return GPTQ(
        config.integer("bits", 2, 8),
        read_group(config, "group_size"),
        VERSIONS[stored_as],
        config.flag("desc_act", False),
    )


def read_group(config: ConfigReader, name: str) -> int | None:
    """A group size; -1, like 0 and null in some exporters, is the whole row."""
    size = config.integer(name, -1, MAX_GROUP, -1)
    return size if size > 0 else None


def _read_dynamic(config: ConfigReader) -> Mapping[str, Mapping[str, Any] | None]:
    """GPTQModel's overrides by pattern: fields, or None for modules that are left out ("-:pattern")."""
    dynamic = config.table("dynamic")
    found: dict[str, Mapping[str, Any] | None] = {}
    for key in () if dynamic is None else dynamic.fields:
        assert dynamic is not None
        fields = dynamic.table(key)
        pattern = key[2:] if key[:2] in ("+:", "-:") else key
        found[pattern] = None if key.startswith("-:") else {} if fields is None else fields.fields
    check_patterns(found)
    return found
