"""Factors that features are divided by: a model stays what it is, and every family has places for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.program.records import WeightRef
from headrace.quantize.transforms.folds import Fold, Rows, folds
from tests.quantize.streams import model, streams
from tests.tiny_checkpoint import CONFIGS, PARALLEL, RECURRENT

FAMILIES = CONFIGS | RECURRENT | PARALLEL


def places(family: str, folder: Path) -> dict[str, Fold]:
    program, _ = model(folder, FAMILIES[family])
    return {reader.name: fold for fold in folds(program) for reader in fold.readers}


def exact(weight: WeightRef, vector: torch.Tensor) -> torch.Tensor:
    return vector


@pytest.mark.parametrize(
    "family",
    ["deepseek", *(pytest.param(one, marks=pytest.mark.long) for one in FAMILIES if one != "deepseek")],
)
def test_factors_leave_a_model_what_it_is(family: str, tmp_path: Path) -> None:
    program, weights = model(tmp_path, FAMILIES[family])
    before = streams(program, weights)
    generator = torch.Generator().manual_seed(0)
    first = weights.matrices["0.gate_up"].weight.clone()
    for fold in folds(program):
        source = fold.source
        shape = [fold.features]
        if fold.by_expert:
            assert isinstance(source, Rows) and source.weight.experts is not None
            shape = [source.weight.experts, fold.features]
        fold.apply(weights, torch.rand(shape, generator=generator) * 4 + 0.25, exact)
    after = streams(program, weights)
    assert not torch.allclose(first, weights.matrices["0.gate_up"].weight, rtol=0.1)
    assert len(before) == len(after) > 4
    for one, other in zip(before, after, strict=True):
        assert (one - other).norm() < 1e-4 * one.norm()


def test_factors_of_heads_that_share_values_are_common(tmp_path: Path) -> None:
    fold = places("mistral", tmp_path)["0.out"]
    assert isinstance(fold.source, Rows) and fold.heads == (4, 2)
    factors = torch.arange(1.0, fold.features + 1)
    columns = fold.spread(factors)
    assert torch.equal(columns[:16], columns[16:32]) and torch.equal(columns[:16], factors[:16])
    assert torch.equal(fold.gather(columns), factors)


@pytest.mark.long
def test_where_families_have_no_place_for_factors(tmp_path: Path) -> None:
    """Latent attention keeps values in floats; delta rules end with a norm of each head; layers that share keys."""
    for family in ("deepseek", "delta", "gemma4", "convolution"):
        (tmp_path / family).mkdir()
    assert {"0.out", "0.latent"} - set(places("deepseek", tmp_path / "deepseek")) == {"0.out"}
    assert {"0.out", "1.out"} - set(places("delta", tmp_path / "delta")) == {"0.out"}
    assert not any(name.endswith(".out") for name in places("gemma4", tmp_path / "gemma4"))
    assert {"0.out", "1.out"} <= set(places("convolution", tmp_path / "convolution"))


def test_a_rounded_norm_is_made_up_for_by_the_columns(tmp_path: Path) -> None:
    _, weights = model(tmp_path, CONFIGS["mistral"] | {"num_hidden_layers": 1})
    fold = places("mistral", tmp_path)["0.qkv"]
    norm, matrix = weights.vectors["0.input_norm"], weights.matrices["0.qkv"].weight
    norm[3] = 0.0
    before = matrix.clone() * norm
    columns = fold.apply(
        weights, torch.linspace(0.3, 3.0, 64), lambda weight, vector: vector.bfloat16().float()
    )
    assert torch.equal(norm, norm.bfloat16().float()) and columns[3] == 1.0
    torch.testing.assert_close(matrix * norm, before, rtol=1e-6, atol=0.0)
