"""Headrace against transformers' own run of one folder, which the packers or the methods' own packages wrote.

test_packages.py runs this in an environment that has the packages. test_written.py reads folders that were written and
run once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.conformance.test_families import expected_logits, prompt
from tests.models.quantized.models import FOUR, family, quantize
from tests.models.quantized.packers import CASES
from tests.models.quantized.test_models import error, logits

OWN_RUNS = [
    "ct-int4-group", "ct-int4-channel", "ct-int8-packed", "ct-fp8-channel", "ct-fp8-tensor",
    "fp8-small-blocks",
]  # fmt: skip
"""Layouts that transformers runs on a CPU in float32. Not among them: packed zeros and activation order of
compressed-tensors, which it refuses to load since 5.20."""


def build(name: str, folder: Path) -> Any:
    """A model whose rows are whole blocks of 64, which the CPU kernel of bitsandbytes asks for, with narrower weights
    than usual: wide ones make softmax amplify the rounding of activations to bfloat16."""
    case = family(name)
    return replace(case, fields={**case.fields, "intermediate_size": 128, "initializer_range": 0.08}).build(
        folder
    )


def own_run(folder: Path, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The logits of what transformers makes of a folder by itself, but for the rounding of activations."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", device_map="cpu"
    ).eval()
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None:
            scheme.input_activations = None
    return expected_logits(model, prompt()).float()


@pytest.mark.parametrize("method", OWN_RUNS)
def test_transformers_reads_the_packers_files_alike(method: str, tmp_path: Path) -> None:
    quantize(tmp_path, build(FOUR[0], tmp_path), CASES[method])
    assert error(logits(tmp_path, prompt(), quantization="a16"), own_run(tmp_path)) < 1e-2


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize(
    "options",
    [
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
        {"load_in_8bit": True},
    ],
    ids=["nf4", "nf4-nested", "fp4", "int8"],
)
def test_bitsandbytes(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Its products on a CPU round activations to bfloat16 or int8, so that a plain model with its weights is closer."""
    quantize_by_itself(name, transformers.BitsAndBytesConfig(**options), tmp_path)
    folder = tmp_path / "quantized"
    ours = logits(folder, prompt(), quantization="a16")
    assert error(ours, plain_run(tmp_path)) < 1e-2
    assert error(ours, own_run(folder)) < 5e-2


def plain_run(folder: Path) -> torch.Tensor:
    """The logits of folder/plain with the weights that bitsandbytes reads in folder/quantized."""
    from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant

    plain, model = (
        transformers.AutoModelForCausalLM.from_pretrained(
            folder / name, dtype=torch.float32, attn_implementation="eager", device_map="cpu"
        ).eval()
        for name in ("plain", "quantized")
    )
    rounded = 0
    for name, module in model.named_modules():
        kind, weight = type(module).__name__, getattr(module, "weight", None)
        if kind == "Linear8bitLt":
            weights = int8_vectorwise_dequant(weight.data, weight.SCB)
        elif kind == "Linear4bit":
            weights = dequantize_4bit(weight.data, weight.quant_state)
        else:
            continue
        plain.get_submodule(name).weight.data.copy_(weights)
        rounded += 1
    assert rounded == 21
    return expected_logits(plain, prompt())


def quantize_by_itself(name: str, config: Any, folder: Path) -> None:
    """Let transformers and bitsandbytes write folder/quantized of folder/plain."""
    build(name, folder / "plain")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "plain", dtype=torch.float32, quantization_config=config, device_map="cpu"
    )
    model.save_pretrained(folder / "quantized")


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize("preset", ["W4A16", "W8A16", "W8A8", "FP8_DYNAMIC", "MXFP4A16"])
def test_compressed_tensors(name: str, preset: str, tmp_path: Path) -> None:
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        apply_quantization_config,
        preset_name_to_scheme,
    )

    model = build(name, tmp_path)
    scheme = preset_name_to_scheme(preset, ["Linear"])
    if scheme.weights.group_size is not None and scheme.weights.group_size > 32:
        scheme.weights.group_size = 32
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
    apply_quantization_config(model, config)
    for module in model.modules():
        _calibrate(module)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path)
    compressor.update_config(tmp_path)
    ours = logits(tmp_path, prompt(), quantization="a16")
    if preset == "MXFP4A16":  # transformers decodes it to bfloat16, and refuses to compute in float32
        assert error(ours, own_run(tmp_path, torch.bfloat16)) < 3e-2
    else:
        assert error(ours, own_run(tmp_path)) < 1e-2


def _calibrate(module: Any) -> None:
    """Scales and zeros of a module's weight, from the least and the largest weight of each group."""
    from compressed_tensors.quantization.utils import calculate_qparams

    scheme = getattr(module, "quantization_scheme", None)
    if scheme is None or scheme.weights is None or not hasattr(module, "weight_scale"):
        return
    rows, columns = module.weight.shape
    groups = module.weight.detach().reshape(rows, -1, scheme.weights.group_size or columns)
    least, largest = groups.amin(-1), groups.amax(-1)
    scales, zeros = calculate_qparams(least, largest, scheme.weights)
    module.weight_scale.data.copy_(scales.reshape(module.weight_scale.shape))
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zeros.reshape(module.weight_zero_point.shape))
