"""Every type of blocks against the package gguf's own dequantisation, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.gguf.types import TYPES, BlockType
from headrace.models.gguf.blocks import coded, dequantize
from headrace.quant.coded import dequantize as dequantize_coded
from tests import needs

gguf = needs.package("gguf")

QUANTIZED = [name for name, one in TYPES.items() if one.quantized]

HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (),
}  # fmt: skip
"""Where a block has its float16 numbers."""

GROUPS = {"Q2_K": 16, "Q3_K": 16, "Q4_K": 8, "Q5_K": 8, "Q6_K": 16, "IQ4_XS": 8}
BITS = {"Q4": 4, "Q5": 5, "Q8": 8, "Q2": 2, "Q3": 3, "Q6": 6, "IQ": 4, "MX": 4}

SPECIAL = np.array(
    [0, 0x8000, 0x0001, 0x8001, 0x03FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x3C00, 0xBC00, 0x2E66], "<u2"
)  # fmt: skip
"""float16: zeros, subnormals, the largest, infinities, NaNs, ones, and one that is usual."""


def theirs(raw: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        values: NDArray[np.float32] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    return values


def same(ours: NDArray[Any], other: NDArray[Any]) -> bool:
    """Equal bits; NaNs where there are NaNs."""
    assert ours.dtype == other.dtype == np.float32 and ours.shape == other.shape
    nan = np.isnan(other)
    return bool(
        np.array_equal(np.isnan(ours), nan)
        and np.array_equal(ours.view(np.uint32)[~nan], other.view(np.uint32)[~nan])
    )


def signless(values: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    """Code 8 of MXFP4 is -0 in OCP MX 1.0; the package, which multiplies whole numbers, has 0."""
    return values + np.float32(0) if name == "MXFP4" else values


def random_rows(name: str, rows: int, blocks: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows of random blocks whose scales are of usual size."""
    one, rng = TYPES[name], np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows * blocks, one.bytes), dtype=np.uint8)
    if name == "MXFP4":
        raw[:, 0] %= 255
    for at in HALVES[name]:
        scales = rng.normal(0, 0.1, (rows * blocks, 1)).astype("<f2")
        raw[:, at : at + 2] = scales.view(np.uint8)
    return raw.reshape(rows, blocks * one.bytes)


@pytest.mark.parametrize("name", QUANTIZED)
def test_random_blocks(name: str) -> None:
    raw = random_rows(name, rows=37, blocks=5)
    ours = dequantize(raw, TYPES[name])
    assert ours.shape == (37, 5 * TYPES[name].weights)
    assert np.isfinite(ours).all() or name == "MXFP4"
    assert same(signless(ours, name), theirs(raw, name))


@pytest.mark.parametrize("name", QUANTIZED)
def test_special_scales(name: str) -> None:
    """Zeros, infinities and NaNs in every place for a scale, with random codes."""
    at = HALVES[name]
    combinations = len(SPECIAL) ** len(at)
    raw = random_rows(name, rows=max(256, combinations), blocks=1, seed=1)
    for index, place in enumerate(at):
        which = np.arange(len(raw)) // len(SPECIAL) ** index % len(SPECIAL)
        raw[:, place : place + 2] = SPECIAL[which, None].view(np.uint8)
    if name == "MXFP4":
        raw[:, 0] = (
            np.arange(len(raw)) % 255
        )  # every exponent; 255 is NaN in OCP MX 1.0, 2^128 in the package
    assert same(signless(dequantize(raw, TYPES[name]), name), theirs(raw, name))


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("byte", [0x00, 0x0F, 0xF0, 0x55, 0xAA, 0xFF])
def test_extreme_codes(name: str, byte: int) -> None:
    raw = random_rows(name, rows=3, blocks=2, seed=2)
    keep = np.zeros(raw.shape, dtype=bool).reshape(-1, TYPES[name].bytes)
    for at in HALVES[name] if name != "MXFP4" else (0,):
        keep[:, at : at + (1 if name == "MXFP4" else 2)] = True
    raw = np.where(keep.reshape(raw.shape), raw, np.uint8(byte))
    assert same(signless(dequantize(raw, TYPES[name]), name), theirs(raw, name))


@pytest.mark.parametrize("name", QUANTIZED)
def test_codes_and_their_groups(name: str) -> None:
    one = TYPES[name]
    codes = coded(random_rows(name, rows=64, blocks=4, seed=3), one)
    assert codes.codes.shape == (64, 4 * one.weights) and codes.scales.shape == (64, 4 * GROUPS.get(name, 1))
    assert (codes.codes.min(), codes.codes.max()) == (0, 2 ** BITS[name[:2]] - 1)
    has_minima = name in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
    assert (codes.zeros is not None) == has_minima


def test_an_exponent_of_255_is_not_a_number() -> None:
    raw = random_rows("MXFP4", rows=2, blocks=1)
    raw[:, 0] = 254, 255
    assert not np.isnan(dequantize(raw, TYPES["MXFP4"])[0]).any()
    assert np.isnan(dequantize(raw, TYPES["MXFP4"])[1]).all()


@pytest.mark.parametrize("name", QUANTIZED)
def test_matrices_of_codes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes, scales and minima apart, as kernels that do not know the blocks take them."""
    monkeypatch.setattr("headrace.models.gguf.blocks.CHUNK", 4 * TYPES[name].weights)
    raw = random_rows(name, rows=11, blocks=3, seed=6)
    assert same(signless(dequantize_coded(coded(raw, TYPES[name])), name), theirs(raw, name))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_floats(name: str) -> None:
    one = TYPES[name]
    raw = np.random.default_rng(4).integers(0, 256, (9, 70 * one.bytes), dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        assert same(dequantize(raw, one), theirs(raw, name))


def test_many_rows_are_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_rows("Q5_K", rows=50, blocks=2)
    whole = dequantize(raw, TYPES["Q5_K"])
    monkeypatch.setattr("headrace.models.gguf.blocks.CHUNK", 3 * 512)
    assert same(dequantize(raw, TYPES["Q5_K"]), whole)


def test_rows_that_are_views_with_gaps() -> None:
    raw = random_rows("Q6_K", rows=20, blocks=1)
    one: BlockType = TYPES["Q6_K"]
    assert same(dequantize(raw[::3], one), dequantize(raw, one)[::3])
