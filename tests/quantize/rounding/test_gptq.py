"""GPTQ beside a plain implementation, and codes that hold what they should."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.quantize.calibration.hessians import LEAST_ROWS, Hessians
from headrace.quantize.rounding.gptq import gptq, inverse_factor, relative_error, squared
from headrace.quantize.rounding.scheme import Scheme, ranges, rtn

Order = Literal["static", "group"]


def inputs(columns: int, rows: int = 400, seed: int = 0) -> torch.Tensor:
    """Correlated, of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(rows, columns // 4, generator=generator, dtype=torch.float64)
    spread = torch.randn(columns // 4, columns, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return (mixed @ spread + noise) * torch.linspace(0.1, 3.0, columns, dtype=torch.float64)


def matrix(rows: int, columns: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain_range(group: NDArray[Any], bits: int, symmetric: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    levels = 2**bits - 1
    if symmetric:
        extreme = np.take_along_axis(group, np.abs(group).argmax(1)[:, None], axis=1)[:, 0]
        scale = (-extreme / 2 ** (bits - 1)).astype(np.float16).astype(np.float64)
        return scale, np.full(len(group), 2.0 ** (bits - 1))
    low, high = np.minimum(group.min(1), 0), np.maximum(group.max(1), 0)
    scale = ((high - low) / levels).astype(np.float16).astype(np.float64)
    return scale, np.clip(np.rint(-low / scale), 0, levels)


def plain_gptq(
    weight: NDArray[Any], hessian: NDArray[Any], scheme: Scheme, order: Order | None
) -> NDArray[Any]:
    """A column at a time, as the paper's algorithm stands without blocks: gives the dequantised matrix."""
    columns, group = weight.shape[1], scheme.group or weight.shape[1]
    places = np.arange(columns) if order is None else np.argsort(-np.diag(hessian), kind="stable")
    damped = hessian + 0.01 * np.diag(hessian).mean() * np.eye(columns)
    inverse = np.linalg.inv(damped[np.ix_(places, places)])
    work, out = weight[:, places].copy(), np.zeros_like(weight)
    fixed = [
        plain_range(weight[:, at : at + group], scheme.bits, scheme.symmetric)
        for at in range(0, columns, group)
    ]
    for i in range(columns):
        if order == "static" or scheme.group is None:
            scale, zero = fixed[places[i] // group]
        elif i % group == 0:
            scale, zero = plain_range(work[:, i : i + group], scheme.bits, scheme.symmetric)
        codes = np.clip(np.rint(work[:, i] / scale) + zero, 0, 2**scheme.bits - 1)
        rounded = (codes - zero) * scale
        out[:, places[i]] = rounded
        work[:, i:] -= np.outer((work[:, i] - rounded) / inverse[i, i], inverse[i, i:])
        # The inverse of what is left, by elimination of this column.
        inverse -= np.outer(inverse[:, i], inverse[i]) / inverse[i, i]
    return out


@pytest.mark.parametrize("order", [None, "static", "group"])
@pytest.mark.parametrize(("bits", "group", "symmetric"), [(4, 32, True), (3, 48, False), (2, None, False)])
def test_gptq_is_a_plain_implementation_of_the_paper(
    bits: int, group: int | None, symmetric: bool, order: Order | None
) -> None:
    weight, x = matrix(12, 288), inputs(288)
    hessian = x.T @ x / len(x)
    scheme = Scheme(bits, group, symmetric)
    found = gptq(weight, hessian, scheme, order)
    expected = plain_gptq(weight.numpy(), hessian.numpy(), scheme, order)
    np.testing.assert_array_equal(found.dequantize().numpy(), expected.astype(np.float32))


def test_a_group_wider_than_a_block_sees_what_the_columns_before_it_left() -> None:
    weight, x = matrix(4, 512), inputs(512, 600)
    scheme = Scheme(3, 256, False)
    found = gptq(weight, x.T @ x, scheme)
    np.testing.assert_array_equal(
        found.dequantize().numpy(),
        plain_gptq(weight.numpy(), (x.T @ x).numpy(), scheme, None).astype(np.float32),
    )


@pytest.mark.parametrize("columns", [96, 300, 516])
def test_the_factor_is_that_of_the_inverse(columns: int) -> None:
    x = inputs(columns, 800)
    hessian = x.T @ x / len(x)
    factor = inverse_factor(hessian, 0.01)
    damped = hessian + 0.01 * hessian.diagonal().mean() * torch.eye(columns)
    assert torch.equal(factor, factor.triu()) and bool((factor.diagonal() > 0).all())
    torch.testing.assert_close(factor.T @ factor @ damped, torch.eye(columns, dtype=torch.float64))


@pytest.mark.parametrize("columns", [96, 1100])
def test_errors_are_those_of_all_products(columns: int) -> None:
    weight, x = matrix(8, columns), inputs(columns, 50)
    assert squared(weight, x.T @ x) == pytest.approx(float((x @ weight.T).square().sum()), rel=1e-10)
    assert squared(weight, None) == pytest.approx(float(weight.square().sum()))


@pytest.mark.parametrize("columns", [96, 1100])
def test_hessians_are_whole_and_symmetric(columns: int) -> None:
    first, second = inputs(columns, 40).float(), inputs(columns, 70, seed=1).float()
    found = Hessians({"one"})
    for rows in (first, second):
        found.record("one", [rows])
    (mean,) = found.of("one")
    rows = torch.cat([first, second])
    torch.testing.assert_close(mean, rows.T @ rows / len(rows), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(mean, mean.T)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [32, None])
def test_its_error_is_below_that_of_rounding(bits: int, group: int | None) -> None:
    weight, x = matrix(32, 128).float(), inputs(128).float()
    hessian, scheme = x.T @ x, Scheme(bits, group)
    nearest = relative_error(weight, rtn(weight, scheme).dequantize(), hessian)
    better = relative_error(weight, gptq(weight, hessian, scheme).dequantize(), hessian)
    ordered = relative_error(weight, gptq(weight, hessian, scheme, "static").dequantize(), hessian)
    assert better < 0.8 * nearest and ordered < 0.8 * nearest
    products = x @ weight.T
    lost = (x @ rtn(weight, scheme).dequantize().T - products).norm() / products.norm()
    assert nearest == pytest.approx(float(lost), rel=1e-3)


@pytest.mark.parametrize("order", [None, "static", "group"])
@pytest.mark.parametrize("group", [32, None])
def test_clipping_by_what_errors_cost_lowers_the_error_of_products(
    group: int | None, order: Order | None
) -> None:
    weight, x = matrix(32, 128), inputs(128)
    x[:, ::16] /= 50.0
    weight[:, ::16] *= 6.0  # what fills the ranges hardly counts
    hessian = x.T @ x / len(x)
    whole, clipped = (
        relative_error(
            weight, gptq(weight, hessian, Scheme(3, group, clip=clip), order).dequantize(), hessian
        )
        for clip in (False, True)
    )
    assert clipped < 0.85 * whole


@pytest.mark.parametrize("group", [32, None])
@pytest.mark.parametrize("order", [None, "static", "group"])
def test_ranges_are_clipped_by_what_is_left_of_errors(group: int | None, order: Order | None) -> None:
    weight, x = matrix(32, 128), inputs(128)
    hessian, scheme = (x.T @ x / len(x)).numpy(), Scheme(3, group, clip=True)
    places = np.arange(128) if order is None else np.argsort(-np.diag(hessian), kind="stable")
    damped = hessian + 0.01 * np.diag(hessian).mean() * np.eye(128)
    factor = np.linalg.cholesky(np.linalg.inv(damped[np.ix_(places, places)])).T
    costs = torch.from_numpy(1.0 / np.diag(factor) ** 2)
    found = gptq(weight, torch.from_numpy(hessian), scheme, order).scales.double()
    if order == "static" or group is None:
        expected = ranges(weight, scheme, costs[np.argsort(places)])[0]
        assert torch.equal(found, expected)
    else:  # the later groups have taken up errors
        expected = ranges(weight[:, places[:group]], scheme, costs[:group])[0]
        assert torch.equal(found[:, :1], expected)
    others = (ranges(weight, scheme)[0], ranges(weight, scheme, torch.from_numpy(np.diag(hessian).copy()))[0])
    assert all(not torch.equal(one[:, :1], expected[:, :1]) for one in others)


def test_clipping_leaves_out_inputs_that_are_always_zero() -> None:
    weight, x = matrix(8, 64), inputs(64) / 1000.0  # a damped 0 counts 1 in the factor
    weight[:, 5::8] *= 4.0
    x[:, 5::8] = 0.0
    hessian = x.T @ x / len(x)
    whole, clipped = (
        relative_error(weight, gptq(weight, hessian, Scheme(4, 32, clip=clip)).dequantize(), hessian)
        for clip in (False, True)
    )
    assert clipped < 0.75 * whole


def test_inputs_that_are_always_zero_leave_plain_rounding() -> None:
    weight, scheme = matrix(8, 64), Scheme(4, 16)
    x = inputs(64)
    x[:, 16:32] = 0.0
    found = gptq(weight, x.T @ x, scheme).dequantize()
    nearest = rtn(weight, scheme).dequantize()
    assert torch.equal(found[:, 16:32], nearest[:, 16:32]) and not torch.equal(found, nearest)
    assert torch.equal(gptq(weight, torch.zeros(64, 64), scheme).dequantize(), nearest)


def test_a_hessian_of_few_inputs_is_damped_until_it_can_be_inverted() -> None:
    weight = matrix(8, 64).float()
    x = torch.ones(1, 64)
    found = gptq(weight, x.T @ x, Scheme(4, 16), damping=0.0)
    assert torch.isfinite(found.dequantize()).all()


def test_codes_reach_both_ends_of_a_group() -> None:
    weight = matrix(6, 64).float()
    weight[0] = weight[0].abs()
    weight[1] = 0.0
    symmetric, zeros = rtn(weight, Scheme(4, 32)), rtn(weight, Scheme(4, 32, symmetric=False))
    assert (symmetric.codes[[0, 2, 3, 4, 5]].view(5, 2, 32).amin(-1) == 0).all()
    assert (zeros.codes[[0, 2, 3, 4, 5]].view(5, 2, 32).amax(-1) == 15).all()
    for one in (symmetric, zeros):
        assert not one.dequantize()[1].any()
        error = (one.dequantize() - weight).abs().view(6, 2, 32)
        assert (error <= one.scales.float().abs()[..., None] * 1.01).all()


def test_a_format_without_a_zero_of_zero_gets_none() -> None:
    weight = matrix(6, 64).float().abs()
    scheme = Scheme(4, 32, symmetric=False, least_zero=1)
    codes = rtn(weight, scheme)
    assert (codes.zeros == 1).all() and (codes.codes.amax(-1) == 15).all()
    assert (codes.dequantize() - weight).abs().max() <= codes.scales.float().max() * 0.51


@pytest.mark.parametrize("symmetric", [True, False])
def test_clipping_lowers_the_error_of_the_weights(symmetric: bool) -> None:
    weight = matrix(16, 128).float()
    weight[:, ::40] *= 3
    plain, clipped = (rtn(weight, Scheme(3, 64, symmetric, clip)).dequantize() for clip in (False, True))
    assert (clipped - weight).norm() < 0.97 * (plain - weight).norm()


def test_scales_are_as_they_are_stored() -> None:
    scales, _ = ranges(matrix(4, 64), Scheme(4, 16, scale="bf16"))
    assert torch.equal(scales, scales.bfloat16().double()) and not torch.equal(
        scales, scales.half().double() + 1
    )
    codes = rtn(matrix(4, 64).float() * 1e-9, Scheme(8, None))
    assert torch.isfinite(codes.dequantize()).all()


def test_experts_that_see_few_rows_are_calibrated_on_those_of_all() -> None:
    x = inputs(16, 2 * LEAST_ROWS).float()
    parts = [x[: LEAST_ROWS + 5], x[LEAST_ROWS + 5 : -1], x[-1:], x[:0]]
    seen = Hessians({"experts"})
    for one in (0, 1):  # in two batches
        seen.record("experts", [part[one::2] for part in parts])
    first, few, single, none = seen.of("experts")
    torch.testing.assert_close(first, parts[0].T @ parts[0] / len(parts[0]))
    for hessian in (few, single, none):
        torch.testing.assert_close(hessian, x.T @ x / len(x))
    peaks = seen.peaks("experts")
    assert torch.equal(peaks[0], parts[0].abs().amax(0))
    assert all(torch.equal(peak, x.abs().amax(0)) for peak in peaks[1:])
    factors = torch.rand(4, 16, generator=torch.Generator().manual_seed(5)) + 0.5
    seen.divide("experts", factors)
    for hessian, peak, factor, rows in zip(
        seen.of("experts"), seen.peaks("experts"), factors, (parts[0], x, x, x), strict=True
    ):
        scaled = rows / factor
        torch.testing.assert_close(hessian, scaled.T @ scaled / len(rows))
        torch.testing.assert_close(peak, scaled.abs().amax(0))


@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_below_any_stored_scale_become_zero(symmetric: bool) -> None:
    scheme = Scheme(4, 32, symmetric, clip=True, scale="bf16")
    weight = matrix(8, 64) * 1e-39
    weight[0] *= 1e39
    for codes in (rtn(weight, scheme), gptq(weight, inputs(64).T @ inputs(64), scheme)):
        found = codes.dequantize()
        assert bool((found[1:] == 0).all())
        assert relative_error(weight[:1], found[:1], None) < 0.2


def test_an_error_beyond_the_arithmetic_is_infinite() -> None:
    weight = (matrix(4, 32) * 1e30).float()
    assert relative_error(weight, 0 * weight, torch.eye(32)) == torch.inf
