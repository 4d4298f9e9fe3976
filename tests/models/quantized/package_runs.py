"""Headrace against transformers' own run of one folder, which the packers or the methods' own packages wrote.

test_packages.py runs this in an environment that has the packages. test_written.py reads folders that were written and
run once.
"""

from __future__ import annotations

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
    "ct-int8-channel", "ct-int4-group", "ct-int4-group-asym", "ct-int4-act-order", "ct-int4-channel", "ct-int8-packed",
    "ct-fp8-channel", "ct-fp8-tensor", "ct-mxfp4", "fp8-small-blocks", "bnb-nf4", "bnb-nf4-nested", "bnb-fp4",
    "bnb-int8",
]  # fmt: skip
"""Layouts that transformers runs on a CPU."""


def own_run(folder: Path, **options: Any) -> torch.Tensor:
    """The logits of what transformers makes of a folder by itself."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", device_map="cpu", **options
    ).eval()
    return expected_logits(model, prompt())


@pytest.mark.parametrize("method", OWN_RUNS)
def test_transformers_reads_the_packers_files_alike(method: str, tmp_path: Path) -> None:
    quantize(tmp_path, family(FOUR[0]).build(tmp_path), CASES[method])
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
    family(name).build(tmp_path / "plain")
    if "load_in_4bit" in options:
        options = {**options, "bnb_4bit_compute_dtype": torch.float32}
    config = transformers.BitsAndBytesConfig(**options)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", dtype=torch.float32, quantization_config=config, device_map="cpu"
    )
    model.save_pretrained(tmp_path / "quantized")
    assert (
        error(logits(tmp_path / "quantized", prompt(), quantization="a16"), own_run(tmp_path / "quantized"))
        < 1e-2
    )


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize("preset", ["W4A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8_DYNAMIC", "MXFP4A16"])
def test_compressed_tensors(name: str, preset: str, tmp_path: Path) -> None:
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        apply_quantization_config,
        preset_name_to_scheme,
    )

    model = family(name).build(tmp_path)
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
    assert error(logits(tmp_path, prompt(), quantization="a16"), own_run(tmp_path)) < 1e-2


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
