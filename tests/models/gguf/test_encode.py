"""Weights rounded to blocks, against the package gguf's reading of them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.gguf.types import TYPES
from headrace.models.gguf.encode import encode
from tests import needs

gguf = needs.package("gguf")

ERRORS = {
    "Q4_0": 0.09, "Q4_1": 0.08, "Q5_0": 0.045, "Q5_1": 0.04, "Q8_0": 0.006, "Q2_K": 0.35, "Q3_K": 0.21,
    "Q4_K": 0.08, "Q5_K": 0.04, "Q6_K": 0.025, "IQ4_NL": 0.09, "IQ4_XS": 0.09,
}  # fmt: skip
"""Most root-mean-square error of normally distributed weights, relative to their own."""


def read(raw: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    values: NDArray[np.float32] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    return values


@pytest.mark.parametrize("kind", ERRORS)
def test_weights_are_near(kind: str) -> None:
    weights = np.random.default_rng(7).standard_normal((24, 768), dtype=np.float32) * np.float32(0.02)
    weights[3] += 0.05
    raw = encode(weights, TYPES[kind])
    assert raw.dtype == np.uint8 and raw.shape == (24, TYPES[kind].size(768))
    error = np.square(read(raw, kind) - weights).mean() / np.square(weights).mean()
    assert np.sqrt(error) < ERRORS[kind]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_no_worse_than_the_package_gguf(kind: str) -> None:
    weights = np.random.default_rng(8).standard_normal((16, 512), dtype=np.float32)
    theirs = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[kind])
    ours, theirs = (
        np.square(read(raw, kind) - weights).mean() for raw in (encode(weights, TYPES[kind]), theirs)
    )
    assert ours < 1.01 * theirs


@pytest.mark.parametrize("kind", ERRORS)
def test_rows_of_zeros_and_extremes(kind: str) -> None:
    weights = np.zeros((6, 256), dtype=np.float32)
    weights[1, 5], weights[2, 200], weights[3] = 1.0, -3e-8, 1e6
    weights[4] = np.linspace(-1, 1, 256)
    with np.errstate(all="raise", under="ignore"):
        raw = encode(weights, TYPES[kind])
    found = read(raw, kind)
    assert np.isfinite(found).all() and not found[0].any() and not found[5].any()
    assert abs(found[1, 5] - 1) < 0.3 and np.abs(found[4] - weights[4]).max() < 0.4


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_spoils_its_block(kind: str, number: float) -> None:
    weights = np.random.default_rng(9).standard_normal((4, 512), dtype=np.float32)
    spoilt = weights.copy()
    spoilt[2, 70] = number
    block = TYPES[kind].weights
    part = np.s_[2, 70 // block * block : (70 // block + 1) * block]
    with np.errstate(all="raise", under="ignore"):
        raw = encode(spoilt, TYPES[kind])
    with np.errstate(invalid="ignore"):
        bad, good = read(raw, kind), read(encode(weights, TYPES[kind]), kind)
    assert np.isnan(bad[part]).all()
    bad[part] = good[part]
    np.testing.assert_array_equal(bad, good)
