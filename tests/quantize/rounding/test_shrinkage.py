"""Codes of least error shrink their rows; what is written keeps the size of the products."""

from __future__ import annotations

import pytest
import torch

from headrace.quantize.gguf.grids import GRIDS
from headrace.quantize.gguf.rounding import gptq_blocks, nearest
from headrace.quantize.methods.table import METHODS, Inputs, Settings
from headrace.quantize.rounding.gptq import Order
from headrace.quantize.rounding.scheme import Codes, Scheme, rtn
from headrace.quantize.rounding.shrinkage import row_factors, unshrunk

COLUMNS = 256


def inputs() -> torch.Tensor:
    """Whose features depend on each other and differ in size."""
    generator = torch.Generator().manual_seed(3)
    mixed = torch.randn(COLUMNS // 4, COLUMNS, generator=generator)
    own = torch.randn(600, COLUMNS, generator=generator)
    sizes = torch.linspace(0.5, 3.0, COLUMNS)
    return (torch.randn(600, COLUMNS // 4, generator=generator) @ mixed + own) * sizes


def matrix(rows: int = 16) -> torch.Tensor:
    weight = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(4))
    return weight * weight.abs()  # a few of each group are large


def kept(weight: torch.Tensor, rounded: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Of each row: the slope of the rounded products over the exact ones, in float64."""
    exact, found = (x.double() @ one.double().T for one in (weight, rounded))
    return (exact * found).sum(0) / exact.square().sum(0)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("method", "order"),
    [("gptq", None), ("gptq", "static"), ("gptq", "group"), ("awq-gptq", None), ("awq", None), ("rtn", None)],
)
def test_rows_whose_ranges_are_clipped_keep_their_size(
    method: str, order: Order | None, symmetric: bool
) -> None:
    weight, x = matrix(), inputs()
    hessian = x.T @ x / len(x)
    given = Inputs(hessian, None, (len(weight),))
    scheme, how = Scheme(2, 32, symmetric, clip=True), Settings(order, 0.01, 0.5)
    found = METHODS[method].round(weight, given, scheme, how)
    seen = torch.eye(COLUMNS) if method == "rtn" else x  # it needs no texts, and looks at none
    slopes = kept(weight, found.dequantize(), seen)
    torch.testing.assert_close(slopes, torch.ones_like(slopes), rtol=0, atol=5e-4)  # scales are float16


def test_smoothquant_keeps_the_size_of_products() -> None:
    weight, x = matrix(), inputs()
    given = Inputs(x.T @ x / len(x), None, (len(weight),))
    scheme = Scheme(8, None, clip=True, scale="f32", positive=True)
    found = METHODS["smoothquant"].round(weight, given, scheme, Settings(None, 0.01, 0.5))
    slopes = kept(weight, found.dequantize(), x)
    torch.testing.assert_close(slopes, torch.ones_like(slopes), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", GRIDS)
def test_rows_of_gguf_types_keep_their_size(name: str) -> None:
    weight, x = matrix(), inputs()
    hessian = x.T @ x / len(x)
    sizes = hessian.diagonal().sqrt().diag()  # inputs that do not depend on each other
    for rounded, seen in (
        (nearest(weight, GRIDS[name]), torch.eye(COLUMNS)),
        (nearest(weight, GRIDS[name], hessian.diagonal()), sizes),
        (gptq_blocks(weight, hessian, GRIDS[name]), x),
    ):
        slopes = kept(weight, rounded.dequantize(), seen)
        torch.testing.assert_close(slopes, torch.ones_like(slopes), rtol=0, atol=6e-4)


def test_without_it_rows_of_few_bits_shrink() -> None:
    weight, x = matrix(), inputs()
    hessian = x.T @ x / len(x)
    first = rtn(weight, Scheme(2, 32, clip=True), hessian)
    found = unshrunk(weight, first, hessian)
    assert bool((kept(weight, first.dequantize(), x) < 0.97).all())
    assert torch.equal(found.codes, first.codes) and torch.equal(found.zeros, first.zeros)
    ratios = found.scales.double() / first.scales.double()
    torch.testing.assert_close(ratios, ratios[:, :1].expand_as(ratios), rtol=1.5e-3, atol=0)


def test_factors_are_those_of_the_products() -> None:
    weight, x = matrix(), inputs()
    rounded = rtn(weight, Scheme(3, 32)).dequantize()
    for power, seen in (
        (x.T @ x, x),
        ((x.T @ x).diagonal(), (x.T @ x).diagonal().sqrt().diag()),
        (None, torch.eye(COLUMNS)),
    ):
        found = row_factors(weight, rounded, power).double()
        torch.testing.assert_close(found, 1.0 / kept(weight, rounded, seen), rtol=1e-5, atol=0)


def test_rows_that_have_lost_their_direction_stay() -> None:
    weight = torch.ones(6, 32)
    weight[4] = 0.0
    rounded = torch.stack([torch.full((32,), one) for one in (0.0, -1.0, 0.4, 3.0, 1.0, 0.8)])
    found = row_factors(weight, rounded, torch.eye(32))
    torch.testing.assert_close(found, torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.25]))
    assert torch.equal(row_factors(weight, rounded, torch.zeros(32, 32)), torch.ones(6))
    codes = Codes(
        Scheme(4, 32), torch.full((6, 32), 9, dtype=torch.uint8), torch.zeros(6, 1).half(),
        torch.full((6, 1), 8, dtype=torch.uint8),
    )  # fmt: skip
    assert torch.equal(unshrunk(weight, codes).scales, codes.scales)
