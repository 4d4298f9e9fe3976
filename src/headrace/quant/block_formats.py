"""The packed formats that hold GGUF's blocks as they are: every code, scale and minimum, nothing rounded.

Standard library only, because planning reads it. docs/kernels.md has the layouts, models/gguf/blocks.py the meaning.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.quant.format import OTHER_FORMATS, WeightFormat, parse_format

_FORMATS = (
    WeightFormat("int4", 32, blocks="q4_0"),
    WeightFormat("int4", 32, minima=True, blocks="q4_1"),
    WeightFormat("int5", 32, blocks="q5_0"),
    WeightFormat("int5", 32, minima=True, blocks="q5_1"),
    WeightFormat("int8", 32, blocks="q8_0"),
    WeightFormat("int2", 16, scale="super", minima=True, blocks="q2_k"),
    WeightFormat("int3", 16, scale="super", blocks="q3_k"),
    WeightFormat("int4", 32, scale="super", minima=True, blocks="q4_k"),
    WeightFormat("int5", 32, scale="super", minima=True, blocks="q5_k"),
    WeightFormat("int6", 16, scale="super", blocks="q6_k"),
    WeightFormat("table4", 32, table="iq4", blocks="iq4_nl"),
    WeightFormat("table4", 32, scale="super", table="iq4", blocks="iq4_xs"),
    WeightFormat("table4", 32, scale="e8m0", table="e2m1", blocks="mxfp4"),
)

BLOCK_FORMATS: Mapping[str, WeightFormat] = {one.blocks: one for one in _FORMATS}
"""By type in lower case. Activations are int8, with a scale a group."""


def named_format(text: str) -> WeightFormat:
    """A quantised format from its name: a type of blocks, "q4_k", or as `parse_format` has it. Raises ConfigError."""
    blocks = None if text in OTHER_FORMATS else BLOCK_FORMATS.get(text)
    return blocks or parse_format(text)
