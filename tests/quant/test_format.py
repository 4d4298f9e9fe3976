"""Names of weight formats, and the bytes that a packed matrix takes."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from headrace.errors import ConfigError
from headrace.models.quantized import methods
from headrace.quant.block_formats import METHODS, MIXES, named_format
from headrace.quant.format import (
    BF16,
    F32,
    FLOAT_FORMATS,
    GROUPS,
    PAGE,
    WIDE_BF16,
    WIDE_F16,
    WeightFormat,
    dense_format,
    parse_format,
)
from headrace.quantize.gguf import mixes


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("int8", WeightFormat("int8", 128)),
        ("int4", WeightFormat("int4", 128)),
        ("int8-channel", WeightFormat("int8", None)),
        ("int4-g32-asym", WeightFormat("int4", 32, symmetric=False)),
        ("int4-a16", WeightFormat("int4", 128, activations="bf16")),
        ("int4-channel-asym-a16", WeightFormat("int4", None, False, "bf16")),
    ],
)
def test_names(text: str, meant: WeightFormat) -> None:
    assert parse_format(text) == meant
    assert meant.name == text


def test_every_format_has_one_name() -> None:
    choices = itertools.product(("int8", "int4"), (None, *GROUPS), (True, False), ("int8", "bf16"))
    formats = [WeightFormat(*choice) for choice in choices]  # type: ignore[arg-type]
    assert [parse_format(one.name) for one in formats] == formats
    assert len({one.name for one in formats}) == len(formats) == 32
    assert parse_format("int4-g128") == parse_format("int4")
    assert parse_format("int8-g128") == parse_format("int8")


@pytest.mark.parametrize("name", ["nf4", "fp8", "mxfp4", "mxfp4-a16"])
def test_names_of_tables(name: str) -> None:
    assert parse_format(name).name == name
    assert parse_format(name).bits_per_weight == {"nf4": 4.25, "fp8": 8.0}.get(name, 4.25)


@pytest.mark.parametrize(
    "text", ["", "nf4-a16", "fp8-g32", "int3", "INT4 ", "int4-g16", "int4-asym-g32", "int4 ", "bf16", "int4-"]
)
def test_other_names_are_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(ConfigError, match="-g32, -g64, -g128 or -channel"):
        parse_format(text)


@pytest.mark.parametrize("text", ["INT4-G32", "Fp8", "Q4_K", "IQ4_NL", "q6_K"])
def test_upper_and_lower_case_are_the_same(text: str) -> None:
    assert named_format(text) == named_format(text.lower())


def test_names_of_methods_and_mixes_are_explained() -> None:
    """Those of vLLM's option for a checkpoint that is quantised already, and of llama.cpp's files."""
    assert methods.METHODS.keys() - METHODS == {"fp8", "mxfp4"}  # formats here
    assert {mix.upper() for mix in MIXES} == {mix for mix in mixes.MIXES if "_K_" in mix}
    for method in METHODS:
        with pytest.raises(
            ConfigError, match=f"'{method}' is how a checkpoint was quantised.*leave the option out"
        ):
            named_format(method)
    with pytest.raises(
        ConfigError, match=r"'Q4_K_M' is a mix of types .* q4_k rounds .* --format gguf:Q4_K_M"
    ):
        named_format("Q4_K_M")


def test_impossible_formats() -> None:
    for wrong in (
        ("int4", 24),
        ("int4", 0),
        ("table4", 32),
        ("table4", 32, False, "bf16", "f16", "nf4"),
        ("table4", 32, True, "int8", "f16", "nf4"),
        ("e4m3", 32, True, "int8"),
        ("e4m3", 32, False, "bf16"),
        ("bf16", None, True, "bf16", "f32"),
        ("int4", 64, True, "f32"),
        ("bf16", 32),
        ("bf16", None, True, "int8"),
        ("f16", None, True, "f16"),
    ):
        with pytest.raises(ConfigError):
            WeightFormat(*wrong)  # type: ignore[arg-type]


def pages(*sizes: int) -> int:
    return sum(-(-size // PAGE) * PAGE for size in sizes)


def test_bytes_by_hand() -> None:
    assert dense_format("bfloat16") is BF16 and dense_format("float32") is F32
    assert dense_format("float32", "bfloat16") is WIDE_BF16 and dense_format("float32", "float16") is WIDE_F16
    assert WIDE_BF16.packed_bytes(320, 64) == WIDE_F16.packed_bytes(320, 64) == 320 * 64 * 2
    assert BF16.packed_bytes(320, 64) == 320 * 64 * 2
    assert F32.packed_bytes(17, 65, bias=True) == pages(32 * 128 * 4, 32 * 4)
    assert parse_format("int8").packed_bytes(1600, 128) == pages(1600 * 128, 1600 * 2)
    assert parse_format("int4").packed_bytes(1601, 192) == pages(
        1616 * 96, 1616 * 2 * 2
    )  # the second group is short
    assert parse_format("int4-g32-asym").packed_bytes(160, 640) == pages(160 * 320, 160 * 20 * 2, 160 * 20)
    assert BF16.packed_bytes(2 * 20, 640, gated=True) == 64 * 640 * 2  # gate and up are padded to 32 each
    assert parse_format("int4").bits_per_weight == 4.125
    assert parse_format("int4-g32-asym").bits_per_weight == 4.75
    assert parse_format("int8-channel").bits_per_weight == BF16.bits_per_weight / 2 == 8


def test_descriptions_are_unique() -> None:
    named = [parse_format(name) for name in ("int8", "int4", "int4-asym", "int4-a16", "int4-g32")]
    assert len({one.describe() for one in (*named, *FLOAT_FORMATS.values())}) == 9
    assert list(FLOAT_FORMATS) == ["f32", "bf16", "bf16-a32", "f16"]


def test_formats_need_no_torch() -> None:
    code = "import sys, headrace.quant.format; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
