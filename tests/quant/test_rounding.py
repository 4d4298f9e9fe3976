"""Rounding to nearest of codes that are not whole numbers, against torch's casts and a search of all entries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.quant.code_format import CodeFormat
from headrace.quant.coded import TABLES, dequantize
from headrace.quant.format import parse_format
from headrace.quant.rounding import encode


def weights(rows: int = 9, columns: int = 150) -> np.ndarray:
    """With outliers, a row of zeros, and numbers of very different sizes."""
    draw = np.random.default_rng(3)
    made = (draw.standard_t(3, (rows, columns)) * 10.0 ** draw.integers(-6, 3, (rows, 1))).astype(np.float32)
    made[4] = 0
    return made


@pytest.mark.parametrize("name", ["nf4", "fp8", "mxfp4"])
def test_every_code_is_the_nearest(name: str) -> None:
    format = parse_format(name)
    original = weights()
    coded = encode(original, format)
    assert coded.format == CodeFormat(format.bits, coded.format.table, format.scale, group=format.group)
    group = format.group or 150
    scales = np.repeat(coded.float_scales(), group, axis=1)[:, :150].astype(np.float64)
    entries = TABLES[coded.format.table].astype(np.float64)
    entries = entries[np.isfinite(entries)]
    best = np.abs(scales[..., None] * entries - original[..., None]).min(-1)
    made = np.abs(dequantize(coded).astype(np.float64) - original)
    assert (made <= best + 1e-6 * np.abs(original)).all()
    assert not dequantize(coded)[4].any()


@pytest.mark.parametrize("name", ["nf4", "fp8", "mxfp4"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("error")
def test_a_weight_that_is_not_finite_spoils_its_group(name: str, number: float) -> None:
    format, original = parse_format(name), weights()
    spoilt = original.copy()
    spoilt[2, 70] = number
    group = format.group or 150
    first = 70 // group * group
    good, bad = dequantize(encode(original, format)), dequantize(encode(spoilt, format))
    part = np.s_[2, first : first + group]
    assert np.isnan(bad[part]).all() and not np.isnan(good).any()
    bad[part] = good[part]
    np.testing.assert_array_equal(bad, good)


def test_largest_magnitudes_keep_their_size() -> None:
    original = weights()
    for name, largest in (("nf4", 1.0), ("fp8", 448.0)):
        coded = encode(original, parse_format(name))
        group = parse_format(name).group or 150
        padded = np.pad(np.abs(original), ((0, 0), (0, -150 % group)))
        tops = padded.reshape(9, -1, group).max(-1)
        np.testing.assert_allclose(coded.float_scales() * largest, tops, rtol=1e-3, atol=1e-6)


def test_floats_of_eight_bits_are_rounded_as_torch_does() -> None:
    """Ties and subnormals included: numbers next to every code and halfway between two, in a row whose scale is 1."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    magnitudes = torch.cat([codes, middles, torch.nextafter(middles, torch.tensor(0.0)), middles * 1.0001])
    row = torch.cat([magnitudes, -magnitudes])[None]
    coded = encode(row.numpy(), parse_format("fp8"))
    assert coded.scales.tolist() == [[1.0]]
    np.testing.assert_array_equal(coded.codes, row.to(torch.float8_e4m3fn).view(torch.uint8).numpy())


def test_ties_of_mxfp4_go_to_the_even_code() -> None:
    row = np.array([[6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, 7.9] + [0] * 21], np.float32)
    coded = encode(row, parse_format("mxfp4"))
    assert coded.scales.tolist() == [[127]]
    decoded = dequantize(coded)[0, :11].tolist()
    assert decoded == [6, 0, 1, 1, 2, 2, 4, 4, 0, -1, 6]


def test_scales_of_mxfp4_are_powers_of_two_of_the_largest() -> None:
    row = np.zeros((1, 160), np.float32)
    row[0, ::32] = [4.0, 7.99, 8.0, 2.0**-130, 3e38]
    assert encode(row, parse_format("mxfp4")).scales.tolist() == [[127, 127, 128, 0, 252]]
