"""What int8 and int4 weights mean: the reference against arithmetic done by hand and in double precision."""

from __future__ import annotations

import pytest
import torch

from headrace.quant import grouped, int4, int8
from headrace.quant.format import GROUPS

FORMATS = {"int8": int8.quantize, "int4": int4.quantize}


def weights(rows: int = 7, cols: int = 200) -> torch.Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(cols)) * 0.05


def test_int8_by_hand() -> None:
    matrix = int8.quantize(torch.tensor([[127.0, -127.0, 1.0, 0.5, 1.5, 0.0]]))
    assert matrix.scales.tolist() == [[1.0]] and matrix.zeros is None
    assert matrix.codes.tolist() == [[255, 1, 129, 128, 130, 128]]  # halves go to the even code


def test_int4_by_hand() -> None:
    matrix = int4.quantize(torch.tensor([[1.0, 8.0, -7.0, 0.0], [-8.0, 4.0, 1.5, 8.0]]), 4)
    assert matrix.scales.tolist() == [
        [-1.0],
        [1.0],
    ]  # the extreme of the first row is positive, so its scale is not
    assert matrix.codes.tolist() == [[7, 0, 15, 8], [0, 12, 10, 15]]  # 8 has no code beside -8
    assert grouped.dequantize(matrix).tolist() == [[1.0, 8.0, -7.0, 0.0], [-8.0, 4.0, 2.0, 7.0]]


def test_zero_points_by_hand() -> None:
    matrix = int4.quantize(torch.tensor([[0.0, 15.0, 3.0], [-5.0, 10.0, -1.0], [4.0, 30.0, 2.0]]), 3, False)
    assert matrix.scales.tolist() == [[1.0], [1.0], [2.0]]
    assert matrix.zeros is not None and matrix.zeros.tolist() == [[0], [5], [0]]
    assert matrix.codes.tolist() == [[0, 15, 3], [0, 15, 4], [2, 15, 1]]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [None, *GROUPS])
@pytest.mark.parametrize("name", FORMATS)
def test_no_weight_moves_by_more_than_half_a_step(name: str, group: int | None, symmetric: bool) -> None:
    weight = weights()
    matrix = FORMATS[name](weight, group, symmetric)
    step = matrix.scales.double().abs().repeat_interleave(matrix.group, dim=1)[:, : weight.shape[1]]
    error = (grouped.dequantize(matrix).double() - weight.double()).abs() / step
    # Clipped: int4 has no code for +8 steps, and a rounded scale or zero may miss the end of the range a little.
    allowed = 1.0 if name == "int4" and symmetric else 0.53 if symmetric else 1.01
    assert error.max() <= allowed
    assert (error <= 0.501).double().mean() > 0.97
    groups = -(-weight.shape[1] // matrix.group)
    assert matrix.scales.shape == (7, groups) and matrix.scales.dtype == torch.float16
    assert matrix.codes.shape == weight.shape and matrix.codes.dtype == torch.uint8
    assert (matrix.zeros is None) == symmetric


@pytest.mark.parametrize(
    ("name", "group", "most"), [("int8", None, 0.012), ("int8", 128, 0.008), ("int4", 128, 0.107)]
)
def test_error_of_gaussian_weights(name: str, group: int | None, most: float) -> None:
    weight = weights(64, 2048)
    error = (grouped.dequantize(FORMATS[name](weight, group, True)) - weight).norm() / weight.norm()
    assert 0.6 * most < error < most


def test_the_signed_extreme_beats_fifteen_codes() -> None:
    weight = weights(64, 1024)
    groups, _ = grouped.grouped(weight, 128)
    usual = grouped.encode_symmetric(groups, groups.abs().amax(-1) / 7.0, -7, 7, 1024)
    error = [(grouped.dequantize(m) - weight).norm() for m in (int4.quantize(weight, 128), usual)]
    assert error[0] < 0.9 * error[1]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_zeros_tiny_and_huge_weights(name: str, symmetric: bool) -> None:
    weight = torch.zeros(4, 64)
    weight[1], weight[2], weight[3] = 1e-9, 3e6, -3e6  # below and above what an f16 scale can hold
    matrix = FORMATS[name](weight, 32, symmetric)
    values = grouped.dequantize(matrix)
    assert torch.equal(values[:2], torch.zeros(2, 64))
    assert torch.isfinite(values).all() and (values[2] > 9e4).all() and (values[3] < -9e4).all()


def test_linear_is_dequantise_then_multiply() -> None:
    weight, bias = weights(5, 96), torch.arange(5.0)
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(1))
    matrix = int4.quantize(weight, 32, False)
    expected = x.double() @ grouped.dequantize(matrix).double().T + bias.double()
    torch.testing.assert_close(grouped.linear(x, matrix, bias).double(), expected, rtol=1e-5, atol=1e-5)


def test_activations_round_trip() -> None:
    x = torch.randn(4, 200, generator=torch.Generator().manual_seed(2))
    x[1] = 0.0
    codes, scales = grouped.encode_activations(x, 64)
    assert codes.dtype == torch.int8 and scales.shape == (4, 4) and codes.abs().max() == 127
    back = grouped.decode_activations(codes, scales, 64)
    assert torch.equal(back[1], x[1])
    assert ((back - x).abs() <= 0.501 * scales.repeat_interleave(64, dim=1)[:, :200]).all()
