"""GGUF's types of blocks: what they store, and the packed formats that hold them as they are, nothing rounded.

Standard library only, because planning reads it. docs/kernels.md has the layouts, gguf/types.py the sizes of blocks and
models/gguf/blocks.py where in them the numbers lie.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.quant.code_format import CodeFormat, native_format
from headrace.quant.format import WeightFormat, parse_format

_CODES = (
    CodeFormat(4, group=32, blocks="q4_0"),
    CodeFormat(4, zero="minimum", group=32, blocks="q4_1"),
    CodeFormat(5, group=32, blocks="q5_0"),
    CodeFormat(5, zero="minimum", group=32, blocks="q5_1"),
    CodeFormat(8, group=32, blocks="q8_0"),
    CodeFormat(2, scale="super", zero="minimum", group=16, blocks="q2_k"),
    CodeFormat(3, scale="super", group=16, blocks="q3_k"),
    CodeFormat(4, scale="super", zero="minimum", group=32, blocks="q4_k"),
    CodeFormat(5, scale="super", zero="minimum", group=32, blocks="q5_k"),
    CodeFormat(6, scale="super", group=16, blocks="q6_k"),
    CodeFormat(4, "iq4", group=32, blocks="iq4_nl"),
    CodeFormat(4, "iq4", scale="super", group=32, blocks="iq4_xs"),
    CodeFormat(4, "e2m1", scale="e8m0", group=32, blocks="mxfp4"),
)

BLOCK_CODES: Mapping[str, CodeFormat] = {one.blocks: one for one in _CODES}
"""What each type stores, by its name in lower case."""


def _packed(codes: CodeFormat) -> WeightFormat:
    format = native_format(codes, "int8")
    assert format is not None
    return format


BLOCK_FORMATS: Mapping[str, WeightFormat] = {name: _packed(codes) for name, codes in BLOCK_CODES.items()}
"""The packed format of each type. Activations are int8, with a scale a group."""


def named_format(text: str) -> WeightFormat:
    """A quantised format from its name: a type of blocks, "q4_k", or as `parse_format` has it. Raises ConfigError."""
    return BLOCK_FORMATS.get(text) or parse_format(text)
