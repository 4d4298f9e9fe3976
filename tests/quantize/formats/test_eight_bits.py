"""Codes of 8 bits for weights whose inputs are rounded too: what readers find, and what smoothing brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import HeadraceError
from headrace.models.config_reader import ConfigReader
from headrace.models.quantized.layout import Matrix
from headrace.models.quantized.methods import read_method
from headrace.models.safetensors_reader import SafetensorsFile
from headrace.quant.coded import dequantize
from headrace.quant.format import parse_format
from headrace.quant.grouped import decode_activations, encode_activations
from headrace.quant.rounding import encode
from headrace.quantize.calibration.hessians import Hessians
from headrace.quantize.calibration.walk import Walk, segments
from headrace.quantize.formats.eight_bits import BlockFloats, FloatQuantized, IntQuantized
from headrace.quantize.formats.files import write_tensors
from headrace.quantize.formats.integers import Format
from headrace.quantize.methods.smoothquant import smooth_factors
from headrace.quantize.options import QuantizeOptions
from headrace.quantize.rounding.fp8 import FloatCodes, FloatScheme, Strategy, encode_floats
from headrace.quantize.rounding.scheme import Codes, Scheme, rtn
from headrace.quantize.transforms.folds import folds
from tests.quantize.streams import TEXTS, model
from tests.tiny_checkpoint import CONFIGS


def matrix(rows: int = 256, columns: int = 384) -> torch.Tensor:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 0.1
    weight[3] *= 7
    return weight


def found(form: Format, codes: Codes | FloatCodes, folder: Path) -> np.ndarray[Any, Any]:
    """What the reader of a format makes of the file."""
    rows, columns = codes.codes.shape
    tensors = form.tensors("m", codes)
    assert [one.form for one in tensors] == form.forms("m", rows, columns, codes.scheme)
    write_tensors(folder / "one.safetensors", tensors)
    file = SafetensorsFile(folder / "one.safetensors")
    config = form.config({codes.scheme: ["m"]}, None, ["head"])
    layout = read_method(config["quant_method"], ConfigReader(config)).layout("m")
    assert layout is not None
    stored = layout.stored(*codes.codes.shape)
    entries = {
        part.suffix: file.entries["m" + part.suffix] for part in stored if "m" + part.suffix in file.entries
    }
    assert {"m" + suffix for suffix in entries} == set(file.entries) - {"m.input_scale"}
    assert all(entries[part.suffix].shape in (part.shapes or ()) for part in stored if part.suffix in entries)
    return dequantize(
        layout.decode(Matrix("m", rows, columns, entries, lambda suffix: file.raw("m" + suffix)))
    )


@pytest.mark.parametrize("scale", ["bf16", "f32"])
@pytest.mark.parametrize("strategy", ["tensor", "channel", "block"])
def test_readers_find_the_floats_that_were_computed(strategy: Strategy, scale: Any, tmp_path: Path) -> None:
    scheme = FloatScheme(strategy, static=strategy != "block", scale=scale)
    codes = encode_floats(matrix(), torch.eye(384), scheme, (256,), 3.0 if scheme.static else None)
    np.testing.assert_array_equal(found(FloatQuantized(), codes, tmp_path), codes.dequantize().numpy())
    assert (codes.dequantize() - matrix()).norm() < 0.04 * matrix().norm()
    if scheme.static:
        stored = SafetensorsFile(tmp_path / "one.safetensors").raw("m.input_scale")
        np.testing.assert_allclose(stored, [3.0 / 448.0], rtol=1e-6)
    if strategy == "block" and scale == "f32":
        np.testing.assert_array_equal(found(BlockFloats(), codes, tmp_path), codes.dequantize().numpy())


def test_signed_integers_with_positive_scales(tmp_path: Path) -> None:
    weight = matrix()
    weight[5] = 0.0
    codes = rtn(weight, Scheme(8, None, scale="f32", positive=True))
    assert (codes.scales >= 0).all() and codes.codes.min() >= 1
    np.testing.assert_array_equal(found(IntQuantized(), codes, tmp_path), codes.dequantize().numpy())
    error = (codes.dequantize() - weight).abs()
    assert (error <= weight.abs().amax(1, keepdim=True) / 127 * 0.501).all()


def test_floats_of_channels_are_those_of_the_specification() -> None:
    scheme = FloatScheme("channel")
    codes = encode_floats(matrix(), torch.eye(384), scheme, (256,), None)
    known = encode(matrix().numpy(), parse_format("fp8"))
    np.testing.assert_array_equal(codes.dequantize().numpy(), dequantize(known))


def test_stored_tensors_of_one_product_have_scales_of_their_own() -> None:
    codes = encode_floats(matrix(), torch.eye(384), FloatScheme("tensor"), (128, 128), None)
    assert float(codes.scales[0, 0]) > 3 * float(codes.scales[128, 0])
    alone = encode_floats(matrix()[128:], torch.eye(384), FloatScheme("tensor"), (128,), None)
    assert torch.equal(codes.rows(128, 256).dequantize(), alone.dequantize())


def test_searched_scales_lower_the_error_of_products() -> None:
    x = torch.randn(200, 384, generator=torch.Generator().manual_seed(2)) * torch.linspace(0.1, 4.0, 384)
    hessian = x.T @ x
    for strategy in ("channel", "block"):
        plain, searched = (
            encode_floats(matrix(), hessian, FloatScheme(strategy, clip), (256,), None).dequantize()
            for clip in (False, True)
        )
        lost = [float((x @ (one - matrix()).T).norm()) for one in (plain, searched)]
        assert lost[1] < 0.99 * lost[0]


def test_smoothed_inputs_lose_less_when_they_are_rounded(tmp_path: Path) -> None:
    program, weights = model(tmp_path, CONFIGS["mistral"] | {"num_hidden_layers": 2})
    weights.vectors["1.post_norm"][::16] *= 40.0
    fold = next(one for one in folds(program) if one.layer == 1 and one.readers[0].name == "1.gate_up")
    walk, inputs, rows = Walk(program, TEXTS), Hessians({"1.gate_up"}), []
    for segment in segments(program):
        if segment.layer != 1:
            walk.advance(weights)
    walk.observe(weights, inputs.watch)
    walk.observe(weights, lambda op, given: rows.append(given[0]) if op.name == "gate_up" else None)
    x, weight = rows[0].clone(), weights.matrices["1.gate_up"].weight
    exact = x @ weight.T

    def lost(x: torch.Tensor, weight: torch.Tensor) -> float:
        rounded = decode_activations(*encode_activations(x, 64), 64)
        codes = rtn(weight, Scheme(8, None, scale="f32", positive=True))
        return float((rounded @ codes.dequantize().T - exact).norm() / exact.norm())

    before = lost(x, weight)
    largest, columns = x.abs().amax(0), weight.abs().amax(0)
    factors = smooth_factors(fold, weights, inputs, fold.readers, 0.5)
    torch.testing.assert_close(factors, (largest / columns).sqrt())
    fold.apply(weights, factors, lambda weight, vector: vector)
    assert lost(x / factors, weight) < 0.5 * before


def test_each_expert_is_smoothed_by_its_own_inputs(tmp_path: Path) -> None:
    program, weights = model(tmp_path, CONFIGS["deepseek"] | {"num_hidden_layers": 2})
    fold = next(one for one in folds(program) if one.by_expert)
    inputs = Hessians({"1.experts_down"})
    peaks = torch.rand(6, 32) + 0.5
    inputs.record("1.experts_down", [peak[None].repeat(300, 1) for peak in peaks])
    factors = smooth_factors(fold, weights, inputs, fold.readers, 0.5)
    columns = weights.matrices["1.experts_down"].weight.abs().amax(1)
    torch.testing.assert_close(factors, (peaks / columns).sqrt())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"method": "smoothquant", "bits": 4, "group": None}, "symmetric codes of 8 bits"),
        ({"method": "smoothquant", "bits": 8}, "no groups of input features: leave out --bits"),
        ({"method": "smoothquant", "bits": 8, "group": None, "smoothing": 1.5}, "must be 0 to 1, got 1.5"),
        ({"method": "fp8", "bits": 8, "group": None, "format": "gptq"}, "give compressed-tensors or fp8"),
        ({"method": "fp8", "bits": 8, "group": None, "format": "fp8"}, "use --group-size 128x128"),
        ({"method": "rtn", "static": True}, "are for --method fp8, leave them out"),
        (
            {"method": "fp8", "bits": 8, "group": None, "strategy": "block", "static": True},
            "leave out --static-inputs",
        ),
        (
            {"method": "fp8", "bits": 8, "group": None, "static": True, "dynamic": True},
            "give one of --static-inputs",
        ),
        ({"method": "gptq", "dynamic": True}, "are for --method fp8, leave them out"),
    ],
)
def test_options_that_do_not_fit_get_one_sentence(options: dict[str, Any], text: str) -> None:
    with pytest.raises(HeadraceError, match=text):
        QuantizeOptions(**options).check()


def test_configs_say_how_inputs_are_rounded() -> None:
    def group(scheme: FloatScheme) -> dict[str, Any]:
        config: dict[str, Any] = FloatQuantized().config({scheme: ["m"]}, None, [])
        return config["config_groups"]["group_0"]  # type: ignore[no-any-return]

    assert group(FloatScheme("channel"))["input_activations"] is None
    blocks = group(FloatScheme("block", dynamic=True))
    assert blocks["weights"]["block_structure"] == [128, 128]
    assert blocks["input_activations"]["group_size"] == 128 and blocks["input_activations"]["dynamic"]
    assert group(FloatScheme("channel", dynamic=True))["input_activations"]["strategy"] == "token"
    assert not group(FloatScheme("tensor", static=True))["input_activations"]["dynamic"]
    ints = IntQuantized().config({Scheme(8, None): ["m"]}, None, ["lm_head"])
    assert ints["ignore"] == ["lm_head"] and json.dumps(ints)
    assert ints["config_groups"]["group_0"]["input_activations"]["strategy"] == "token"
