"""AWQ: scales that lower the error of products, clipping that sees the inputs, and folders in its format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.quantize.calibration.hessians import Hessians
from headrace.quantize.calibration.walk import Walk, segments
from headrace.quantize.methods.awq import awq, awq_factors
from headrace.quantize.rounding.gptq import relative_error
from headrace.quantize.rounding.scheme import Scheme, rtn
from headrace.quantize.transforms.folds import folds
from tests.quantize.streams import TEXTS, model
from tests.tiny_checkpoint import CONFIGS


def outliers(columns: int) -> torch.Tensor:
    """Inputs of which one in 16 is twenty times as large."""
    x = torch.randn(300, columns, generator=torch.Generator().manual_seed(3))
    x[:, ::16] *= 20
    return x


@pytest.mark.parametrize("symmetric", [True, False])
def test_clipping_by_inputs_lowers_the_error_of_products(symmetric: bool) -> None:
    weight = torch.randn(24, 128, generator=torch.Generator().manual_seed(1))
    weight[:, 5::32] *= 4  # large weights whose inputs are small
    x = outliers(128)
    hessian, scheme = x.T @ x, Scheme(3, 32, symmetric)
    clipped = rtn(weight, Scheme(3, 32, symmetric, clip=True))
    whole, blind, seen = (
        relative_error(weight, codes.dequantize(), hessian)
        for codes in (rtn(weight, scheme), clipped, awq(weight, hessian, scheme))
    )
    assert seen < 0.95 * min(whole, blind)


def test_clipping_by_one_input_is_clipping_for_that_weight() -> None:
    """A group of which a single input counts: the best range holds that weight almost exactly."""
    weight = torch.tensor([[1.0, 0.31, -0.77, 0.9] * 4])
    hessian = torch.zeros(16, 16)
    hessian[1, 1] = 1.0
    found = awq(weight, hessian, Scheme(3, 16)).dequantize()
    assert abs(float(found[0, 1]) - 0.31) < abs(float(rtn(weight, Scheme(3, 16)).dequantize()[0, 1]) - 0.31)


@pytest.mark.parametrize("family", ["mistral", "deepseek"])
def test_factors_lower_the_error_of_every_fold(family: str, tmp_path: Path) -> None:
    """Of a layer whose inputs differ in size, readers and experts of all kinds."""
    program, weights = model(tmp_path, CONFIGS[family] | {"num_hidden_layers": 2, "num_local_experts": 4})
    for name in ("0.input_norm", "1.input_norm", "1.post_norm"):
        weights.vectors[name][::8] *= 12.0
    walk, scheme = Walk(program, TEXTS), Scheme(3, 16)
    places = [fold for fold in folds(program) if fold.layer == 1]
    coded = {reader for fold in places for reader in fold.readers if not reader.exact}
    inputs = Hessians({one.name for one in coded})
    for segment in segments(program):
        if segment.layer == 1:
            walk.observe(weights, inputs.watch)
        else:
            walk.advance(weights)

    def error(name: str) -> float:
        stacked = weights.matrices[name].weight
        matrices = stacked if stacked.dim() == 3 else stacked[None]
        return sum(
            relative_error(matrix, rtn(matrix, scheme).dequantize(), hessian)
            for matrix, hessian in zip(matrices, inputs.of(name), strict=True)
        )

    assert len(places) >= 4
    better = 0
    for fold in places:
        names = [one.name for one in fold.readers if one in coded]
        before = sum(map(error, names))
        factors = awq_factors(fold, weights, inputs, coded, lambda reader: scheme)
        columns = fold.apply(weights, factors, lambda weight, vector: vector)
        for name in names:
            inputs.divide(name, columns)
        after = sum(map(error, names))
        assert after < before * 1.02
        better += after < before * 0.8
    assert better >= 2
