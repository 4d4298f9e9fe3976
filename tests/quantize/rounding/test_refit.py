"""Scales for codes as they are: no other scales have less error of the products, and readers find them."""

from __future__ import annotations

import pytest
import torch

from headrace.quantize.rounding.gptq import gptq, relative_error
from headrace.quantize.rounding.refit import refit
from headrace.quantize.rounding.scheme import Codes, Scheme, rtn


def inputs(columns: int) -> torch.Tensor:
    """Whose features depend on each other."""
    generator = torch.Generator().manual_seed(5)
    mixed = torch.randn(columns // 4, columns, generator=generator)
    return torch.randn(400, columns // 4, generator=generator) @ mixed + torch.randn(
        400, columns, generator=generator
    )


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("order", "columns"), [(None, 128), ("group", 128), (None, 112)])
def test_the_error_falls_and_codes_stay(symmetric: bool, order: str | None, columns: int) -> None:
    weight = torch.randn(24, columns, generator=torch.Generator().manual_seed(1))
    x = inputs(columns)
    hessian, scheme = x.T @ x, Scheme(3, 32, symmetric)
    first = rtn(weight, scheme) if order is None else gptq(weight, hessian, scheme, "group")
    found = refit(weight, first, hessian)
    assert torch.equal(found.codes, first.codes) and torch.equal(found.zeros, first.zeros)
    assert found.scales.dtype == first.scales.dtype and torch.equal(found.groups(), first.groups())
    assert bool((found.scales * first.scales > 0).all())
    before, after = (relative_error(weight, one.dequantize(), hessian) for one in (first, found))
    assert after < 0.97 * before
    for row in range(len(weight)):
        own = [
            relative_error(weight[[row]], one.rows(row, row + 1).dequantize(), hessian)
            for one in (first, found)
        ]
        assert own[1] <= own[0] * (1 + 1e-5)
    exact = found.scales.double()
    for change in (0.98, 1.02):
        moved = Codes(scheme, found.codes, (exact * change).half(), found.zeros, found.group_of)
        assert relative_error(weight, moved.dequantize(), hessian) > after


def test_what_was_exact_stays_and_dead_groups_do_no_harm() -> None:
    weight = torch.randint(-8, 8, (4, 64), generator=torch.Generator().manual_seed(2)) * 0.25
    weight[:, ::16] = -2.0  # each group has its extreme
    weight[1, :32] = 0.0
    hessian = torch.zeros(64, 64)
    hessian[:40, :40] = torch.eye(40)
    scheme = Scheme(4, 32)
    first = rtn(weight, scheme)
    found = refit(weight, first, hessian)
    assert torch.equal(found.dequantize()[:, :40], weight[:, :40])
    assert torch.equal(found.scales[1, :1], first.scales[1, :1]) and bool(torch.isfinite(found.scales).all())
