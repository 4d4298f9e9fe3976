"""GGUF's types of blocks: what they store, and the packed formats that hold them as they are, nothing rounded.

Standard library only, because planning reads it. docs/kernels.md has the layouts, gguf/types.py the sizes of blocks and
models/gguf/blocks.py where in them the numbers lie.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import ConfigError
from headrace.quant.code_format import CodeFormat, native_format
from headrace.quant.format import GRAMMAR, WeightFormat, parse_format

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


METHODS = frozenset(
    {
        "gptq", "gptq_marlin", "awq", "awq_marlin", "auto-round", "compressed-tensors", "fbgemm_fp8", "modelopt",
        "modelopt_fp8", "bitsandbytes", "gguf",
    }
)  # fmt: skip
"""How checkpoints are quantised, as vLLM's option `quantization` names it: those of `models.quantized.methods` that are
not formats here too, and others that vLLM has for the same files."""

MIXES = frozenset({"q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m"})
"""llama.cpp's mixes of types that `headrace quantize` writes."""


def named_format(text: str) -> WeightFormat:
    """A quantised format from its name, in upper or lower case: a type of blocks, "q4_k", or as `parse_format` has it.

    Raises ConfigError, with what to do for names of methods and of mixes.
    """
    name = text.lower()
    if name in METHODS:
        raise ConfigError(
            f"quantization {text!r:.80} is how a checkpoint was quantised, which its files say: leave the option out, "
            f"or name a format to round to: {GRAMMAR}"
        )
    if name in MIXES:
        raise ConfigError(
            f"quantization {text!r:.80} is a mix of types for a GGUF file: {name[:4]} rounds every matrix to one, and "
            f"`headrace quantize --format gguf:{name.upper()}` writes such a file"
        )
    return BLOCK_FORMATS.get(name) or parse_format(text)
