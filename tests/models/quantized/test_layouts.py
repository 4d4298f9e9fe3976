"""Each layout, packed by the independent code in packers.py, is read back as the weights that it means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from tests import needs

native = needs.native()
transformers = needs.lazily("transformers")

from headrace.models.config_reader import ConfigReader  # noqa: E402
from headrace.models.packing import pack_codes  # noqa: E402
from headrace.models.quantized.layout import Layout, Matrix  # noqa: E402
from headrace.models.quantized.methods import quantization_of, read_method  # noqa: E402
from headrace.models.quantized.mxfp4 import MXFP4  # noqa: E402
from headrace.models.safetensors_reader import Checkpoint  # noqa: E402
from headrace.quant.code_format import native_format  # noqa: E402
from headrace.quant.coded import TABLES, Coded, CodeFormat, dequantize  # noqa: E402
from headrace.quant.format import Activations, WeightFormat  # noqa: E402
from tests.models.quantized.packers import CASES, NATIVE, gpt_oss  # noqa: E402

MODULE = "model.layers.0.self_attn.q_proj"
ROWS, COLUMNS = 64, 96


def stored(
    folder: Path, layout: Layout, tensors: dict[str, torch.Tensor], rows: int = ROWS, columns: int = COLUMNS
) -> Matrix:
    """A matrix in a checkpoint of its own, with every tensor in a shape that the layout expects."""
    save_file({MODULE + suffix: part for suffix, part in tensors.items()}, folder / "model.safetensors")
    checkpoint = Checkpoint(folder)
    parts = {part.suffix: part for part in layout.stored(rows, columns)}
    entries = {suffix: checkpoint.entry(MODULE + suffix) for suffix in parts}
    found = {suffix: entry for suffix, entry in entries.items() if entry is not None}
    for suffix, entry in found.items():
        shapes = parts[suffix].shapes
        assert entry.dtype in parts[suffix].dtypes and (shapes is None or entry.shape in shapes)
    assert all(suffix in found for suffix, part in parts.items() if part.required)
    return Matrix(MODULE, rows, columns, found, lambda suffix: checkpoint.raw(MODULE + suffix))


def layout_of(config: dict[str, Any], module: str = MODULE) -> Layout | None:
    named = quantization_of({"quantization_config": config}, None)
    assert named is not None
    return read_method(*named).layout(module)


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_read_back(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    tensors, weights = case.pack(ROWS, COLUMNS, np.random.default_rng(1))
    layout = layout_of(case.config)
    assert layout is not None
    matrix = stored(tmp_path, layout, tensors)
    coded = layout.decode(matrix)
    assert coded.format == layout.format(matrix)
    decoded = dequantize(coded)
    if case.exact:
        assert np.array_equal(decoded, weights.numpy())
    else:
        np.testing.assert_allclose(decoded, weights.numpy(), rtol=1e-5, atol=1e-7)
    packed = native_format(coded.format, "bf16")
    assert (None if packed is None else packed.name.replace("-a16", "")) == NATIVE.get(name)


@pytest.mark.parametrize("activations", ["int8", "bf16"])
@pytest.mark.parametrize("name", NATIVE)
def test_the_kernels_hold_the_same_weights(name: str, activations: Activations, tmp_path: Path) -> None:
    """As they read them back, row by row."""
    case = CASES[name]
    tensors, weights = case.pack(ROWS, COLUMNS, np.random.default_rng(2))
    layout = layout_of(case.config)
    assert layout is not None
    coded = layout.decode(stored(tmp_path, layout, tensors))
    target = native_format(coded.format, activations)
    assert target is not None
    check(coded, target, weights.numpy())


def check(coded: Coded, target: WeightFormat, weights: NDArray[np.float32]) -> None:
    kernels, team = native.Kernels("portable"), native.Team(1)
    matrix = pack_codes(kernels, team, [coded], target)
    assert matrix.nbytes == target.packed_bytes(ROWS, COLUMNS)
    assert matrix.ordered == target.ordered and (matrix.input != "i8" or matrix.span == (target.span or 128))
    out = np.empty((ROWS, COLUMNS), dtype=np.float32)
    native.embed(kernels, team, np.arange(ROWS), matrix, out)
    if target.table in ("nf4", "fp4"):  # the table's entries are rounded to bfloat16
        np.testing.assert_allclose(out, weights, rtol=2**-8)
    else:
        np.testing.assert_allclose(out, weights, rtol=1e-6)


def test_experts_of_gpt_oss(tmp_path: Path) -> None:
    tensors, weights = gpt_oss(3)(32, 64, np.random.default_rng(0))
    layout = MXFP4(experts=3)
    matrix = stored(tmp_path, layout, tensors, 96, 64)
    assert np.array_equal(dequantize(layout.decode(matrix)), weights.numpy())
    theirs = transformers.integrations.mxfp4.convert_moe_packed_tensors(
        tensors["_blocks"], tensors["_scales"], dtype=torch.float32
    )
    assert torch.equal(theirs.transpose(1, 2).reshape(96, 64), weights)


def test_a_block_of_bitsandbytes_may_end_within_a_row(tmp_path: Path) -> None:
    case = CASES["bnb-nf4"]
    tensors, weights = case.pack(6, 40, np.random.default_rng(0))
    layout = layout_of(case.config)
    assert layout is not None
    coded = layout.decode(stored(tmp_path, layout, tensors, 6, 40))
    assert coded.format.group == 8
    assert np.array_equal(dequantize(coded), weights.numpy())


@pytest.mark.parametrize(("table", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_tables_of_eight_bits_are_those_of_torch(table: Any, dtype: torch.dtype) -> None:
    theirs = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
    np.testing.assert_array_equal(TABLES[table], theirs)


def test_powers_of_two_are_those_of_torch() -> None:
    scales = np.arange(256, dtype=np.uint8).reshape(256, 1)
    ones = np.full((256, 1), 0x38, dtype=np.uint8)  # 1.0 in e4m3
    made = dequantize(Coded(CodeFormat(8, "e4m3", "e8m0"), ones, scales))
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu).float().numpy()
    np.testing.assert_array_equal(made[:, 0], theirs)


@pytest.mark.parametrize("rows", [1, 3, None])
@pytest.mark.parametrize("group", [4, 7, None])
@pytest.mark.parametrize("zero", ["none", "integer", "minimum"])
@pytest.mark.parametrize("permuted", [False, True])
def test_dequantize_weight_by_weight(rows: Any, group: Any, zero: Any, permuted: bool) -> None:
    draw = np.random.default_rng(0)
    format = CodeFormat(5, scale="f32", zero=zero, group=group, rows=rows, order=int(permuted))
    shape = (-(-7 // (rows or 7)), -(-12 // (group or 12)))
    codes = draw.integers(0, 32, (7, 12)).astype(np.uint8)
    scales = draw.normal(size=shape).astype(np.float32)
    zeros = {
        "none": None,
        "integer": draw.integers(0, 32, shape).astype(np.uint8),
        "minimum": draw.normal(size=shape).astype(np.float32),
    }[zero]
    order = draw.permutation(12) if permuted else None
    made = dequantize(Coded(format, codes, scales, zeros, order))
    for row in range(7):
        for column in range(12):
            block = row // (rows or 7), column // (group or 12)
            code = float(codes[row, column])
            if zero == "minimum":
                expected = code * scales[block] - zeros[block]
            else:
                expected = (code - (16.0 if zeros is None else float(zeros[block]))) * scales[block]
            assert made[row, column if order is None else order[column]] == pytest.approx(expected, rel=1e-6)


def test_settings_in_files_beside_the_config(tmp_path: Path) -> None:
    """As AutoGPTQ, AutoAWQ and ModelOpt wrote them before configs held them."""
    assert quantization_of({}, tmp_path) is None
    files = {
        "hf_quant_config.json": (
            "modelopt",
            {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
        ),
        "quant_config.json": ("awq", {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}),
        "quantize_config.json": ("gptq", {"bits": 4, "group_size": 32, "desc_act": False, "sym": True}),
    }
    for file, (name, content) in files.items():
        (tmp_path / file).write_text(json.dumps(content))
        found = quantization_of({}, tmp_path)
        assert found is not None and found[0] == name
        assert read_method(*found).layout(MODULE) is not None
    assert read_method("modelopt", ConfigReader(files["hf_quant_config.json"][1])).layout("lm_head") is None


def test_which_modules_a_config_quantises() -> None:
    gptq = CASES["gptq-4"].config
    dynamic = {"-:.*\\.down_proj": {}, "+:.*layers\\.1\\.": {"bits": 8, "group_size": 64}, "lm_head": {}}
    mixed = {**gptq, "lm_head": True, "dynamic": dynamic}
    assert layout_of(gptq, "lm_head") is None and layout_of(mixed, "lm_head") == layout_of(gptq)
    assert layout_of(mixed, "model.layers.0.mlp.down_proj") is None
    wide = layout_of(mixed, "model.layers.1.mlp.up_proj")
    assert wide is not None and (wide.bits, wide.group) == (8, 64)  # type: ignore[attr-defined]

    scheme = CASES["ct-int4-group"].config["config_groups"]["group_0"]
    eight = {
        **scheme,
        "weights": {**scheme["weights"], "num_bits": 8},
        "targets": ["re:.*self_attn\\.(q|k)_proj$"],
    }
    groups = {
        "group_0": {**scheme, "targets": ["re:.*mlp.*", "model.layers.0.self_attn.o_proj"]},
        "group_1": eight,
    }
    config = {
        **CASES["ct-int4-group"].config,
        "config_groups": groups,
        "ignore": ["lm_head", "re:.*layers.3.*up_proj"],
    }
    bits = {
        "model.layers.0.self_attn.q_proj": 8, "model.layers.0.self_attn.v_proj": None,
        "model.layers.3.mlp.up_proj": None,
        "model.layers.0.self_attn.o_proj": 4, "model.layers.2.mlp.up_proj": 4, "lm_head": None,
    }  # fmt: skip
    assert {name: getattr(layout_of(config, name), "bits", None) for name in bits} == bits

    extra = {MODULE: {"bits": 8, "group_size": 64}, "model.layers.1.mlp.up_proj": {"bits": 16}}
    auto = {
        **gptq,
        "quant_method": "auto-round",
        "packing_format": "auto_round:auto_gptq",
        "extra_config": extra,
    }
    assert layout_of(auto, "model.layers.0.mlp.up_proj") == layout_of(gptq)
    assert layout_of(auto, "model.layers.1.mlp.up_proj") is None
    assert getattr(layout_of(auto), "bits", None) == 8
    auto = {**auto, "packing_format": "auto_round:auto_awq", "extra_config": None}
    interleaved = layout_of(auto, "model.layers.0.mlp.up_proj")
    assert interleaved == layout_of({**CASES["awq-gemm"].config, "zero_point": True})

    awq = {**CASES["awq-gemm"].config, "modules_to_not_convert": ["lm_head", "mlp.gate"]}
    assert layout_of(awq, "model.layers.0.mlp.gate") is None and layout_of(awq, "lm_head") is None
    assert layout_of(awq, "model.layers.0.mlp.gate_proj") is not None
