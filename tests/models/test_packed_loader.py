"""From checkpoint tensors to packed matrices, with little memory beside them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from headrace.errors import CheckpointError
from headrace.models.families import read_spec, weight_names
from headrace.models.floats import to_bfloat16, to_float32
from headrace.models.loader import as_tensor, load_weights
from headrace.models.shapes import SHAPES
from headrace.models.source import resolve_model
from headrace.models.weights import Projection, Weights
from headrace.program.lower import lower
from headrace.quant.format import BF16, F32, WeightFormat, WeightFormats, parse_format
from tests import needs

native = needs.native()

from headrace.models import packed_loader  # noqa: E402

KERNELS = native.Kernels(native.available_kernels()[0])
TEAM = native.Team(2)
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def qwen_config(llama_config: dict[str, Any]) -> dict[str, Any]:
    """Biases, norms on heads, and widths that are not multiples of a panel."""
    more = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": True,
        "head_dim": 8,
    }
    return {**llama_config, **more, "hidden_size": 20, "intermediate_size": 24}


def write(folder: Path, config: dict[str, Any], dtype: torch.dtype = torch.float32) -> Tensors:
    spec = read_spec(config)
    rng = torch.Generator().manual_seed(0)
    shapes = lower(spec, weight_names(spec)).tensors()
    tensors = {name: torch.randn(shape, generator=rng).to(dtype) for name, shape in shapes.items()}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return tensors


def load(name: Path | str, weights: WeightFormat, dtype: str = "float32", **options: Any) -> Weights:
    source = resolve_model(str(name))
    spec = read_spec(source.config)
    loaded: Weights = packed_loader.load_packed(
        source, spec, dtype=dtype, weights=WeightFormats(weights), kernels=KERNELS, team=TEAM, **options
    )
    return loaded


def unpacked(projection: Projection) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(matrix [O, I], bias [O]) from products with unit vectors and with zero."""
    matrix = projection.weight
    probes = np.concatenate((np.eye(matrix.cols), np.zeros((1, matrix.cols)))).astype(np.float32)
    made = native.linear(KERNELS, TEAM, probes, matrix)[:, : matrix.rows]
    return (made[:-1] - made[-1:]).T, made[-1]


def test_every_tensor_is_packed_in_its_place(tmp_path: Path, qwen_config: dict[str, Any]) -> None:
    tensors = write(tmp_path, qwen_config)
    weights = load(tmp_path, F32)
    prefix = "model.layers.1."
    parts = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
    matrix, bias = unpacked(weights.matrices["1.qkv"])
    np.testing.assert_allclose(matrix, torch.cat([tensors[f"{part}.weight"] for part in parts]), atol=1e-5)
    np.testing.assert_allclose(bias, torch.cat([tensors[f"{part}.bias"] for part in parts]), atol=1e-6)
    for projection, name in (
        (weights.matrices["1.out"], f"{prefix}self_attn.o_proj"),
        (weights.matrices["1.down"], f"{prefix}mlp.down_proj"),
    ):
        np.testing.assert_allclose(unpacked(projection)[0], tensors[f"{name}.weight"], atol=1e-5)
    np.testing.assert_allclose(unpacked(weights.matrices["head"])[0], tensors["lm_head.weight"], atol=1e-5)
    for norm, name in (
        (weights.vectors["1.input_norm"], f"{prefix}input_layernorm.weight"),
        (weights.vectors["1.post_norm"], f"{prefix}post_attention_layernorm.weight"),
        (weights.vectors["1.query_norm"], f"{prefix}self_attn.q_norm.weight"),
        (weights.vectors["1.key_norm"], f"{prefix}self_attn.k_norm.weight"),
        (weights.vectors["final_norm"], "model.norm.weight"),
    ):
        assert norm.dtype == np.float32 and np.array_equal(norm, tensors[name])
    assert np.array_equal(weights.tables["embed"], tensors["model.embed_tokens.weight"])
    assert weights.formats == ("f32",)


def test_gate_and_up_are_interleaved(tmp_path: Path, qwen_config: dict[str, Any]) -> None:
    tensors = write(tmp_path, qwen_config)
    matrix = load(tmp_path, F32).matrices["0.gate_up"].weight
    x = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    gate, up = (tensors[f"model.layers.0.mlp.{part}_proj.weight"].numpy() for part in ("gate", "up"))
    made = native.linear(KERNELS, TEAM, x, matrix, epilogue="gate", gate="silu")[:, :24]
    gated = x @ gate.T
    np.testing.assert_allclose(made, gated / (1 + np.exp(-gated)) * (x @ up.T), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_stored_type_is_read(
    tmp_path: Path, llama_config: dict[str, Any], stored: torch.dtype, dtype: str
) -> None:
    tensors = write(tmp_path, llama_config, stored)
    weights = load(tmp_path, F32 if dtype == "float32" else BF16, dtype)
    embed = tensors["model.embed_tokens.weight"]
    assert weights.tables["embed"].dtype == (np.float32 if dtype == "float32" else np.uint16)
    assert torch.equal(as_tensor(weights.tables["embed"]), embed.to(getattr(torch, dtype)))
    name = "model.layers.0.self_attn.o_proj.weight"
    kept = tensors[name].to(getattr(torch, dtype)).float()
    np.testing.assert_allclose(unpacked(weights.matrices["0.out"])[0], kept, rtol=1e-6, atol=1e-6)


def test_parts_of_one_matrix_may_be_stored_in_different_types(
    tmp_path: Path, llama_config: dict[str, Any]
) -> None:
    tensors = write(tmp_path, llama_config)
    name = "model.layers.0.self_attn.{}_proj.weight"
    tensors[name.format("k")] = tensors[name.format("k")].half()
    save_file(tensors, tmp_path / "model.safetensors")
    matrix, _ = unpacked(load(tmp_path, F32).matrices["0.qkv"])
    expected = torch.cat([tensors[name.format(part)].float() for part in "qkv"])
    np.testing.assert_allclose(matrix, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["int8", "int8-g32", "int4-g32", "int4-g32-asym", "int8-asym-a16"])
def test_quantised_at_load(tmp_path: Path, llama_config: dict[str, Any], name: str) -> None:
    tensors = write(tmp_path, llama_config)
    weights = load(tmp_path, parse_format(name))
    assert weights.formats == (name,) == (weights.matrices["head"].format,)
    matrix, _ = unpacked(weights.matrices["0.down"])
    stored = tensors["model.layers.0.mlp.down_proj.weight"]
    worst = stored.abs().max().item() / (127 if "int8" in name else 7)
    distance = np.abs(matrix - stored.numpy()).max()
    assert 0 < distance <= (0.51 + 0.01) * worst * (2 if "asym" in name else 1)


@pytest.mark.parametrize("stored", [False, True])
def test_tied_head(tmp_path: Path, llama_config: dict[str, Any], stored: bool) -> None:
    tensors = write(tmp_path, llama_config)
    if not stored:
        del tensors["lm_head.weight"]
        save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**llama_config, "tie_word_embeddings": True}))
    weights = load(tmp_path, F32)
    assert weights.tables["embed"] is weights.matrices["embed"].weight  # one matrix in memory
    np.testing.assert_allclose(
        unpacked(weights.matrices["embed"])[0], tensors["model.embed_tokens.weight"], atol=1e-6
    )
    rounded = load(tmp_path, parse_format("int8"))
    assert rounded.tables["embed"] is not rounded.matrices["embed"].weight  # the embeddings keep their bits
    assert np.array_equal(rounded.tables["embed"], tensors["model.embed_tokens.weight"])


def test_progress_and_refusals(tmp_path: Path, llama_config: dict[str, Any]) -> None:
    tensors = write(tmp_path, llama_config)
    seen: list[tuple[int, int]] = []
    load(tmp_path, BF16, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, len(tensors)) for n in range(1, len(tensors) + 1)]
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="lacks tensor"):
        load(tmp_path, BF16)


@pytest.mark.parametrize("shape", ["tiny", pytest.param("smollm2-135m-32k", marks=pytest.mark.long)])
def test_random_weights_are_those_of_torch(shape: str) -> None:
    dtype = SHAPES[shape]["torch_dtype"]
    packed = load(f"shape:{shape}", F32 if dtype == "float32" else BF16, dtype, seed=3)
    source = resolve_model(f"shape:{shape}")
    dense = load_weights(source, read_spec(source.config), dtype=getattr(torch, dtype), seed=3)
    tied = SHAPES[shape]["tie_word_embeddings"]
    embed = packed.tables["embed"]
    assert ("embed" in packed.matrices and embed is packed.matrices["embed"].weight) is tied
    table = unpacked(packed.matrices["embed"])[0] if tied else to_float32(embed)
    np.testing.assert_array_equal(table, dense.tables["embed"].float())
    assert packed.matrices.keys() == dense.matrices.keys()
    last = [name for name in dense.matrices if name.endswith("down")][-1]
    for name in (*(name for name in dense.matrices if name.endswith("qkv")), last):
        matrix, _ = unpacked(packed.matrices[name])
        np.testing.assert_allclose(matrix, dense.matrices[name].weight.float(), rtol=1e-6, atol=1e-7)


def test_floats() -> None:
    values = np.array(
        [0.0, -0.0, 1.0, 1e-40, 3e38, -np.inf, np.nan, 1.00390625, 1.01171875], dtype=np.float32
    )
    many = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    for sample in (values, many, many.astype(np.float64), many.astype(np.float16)):
        rounded = as_tensor(to_bfloat16(sample))
        assert torch.equal(rounded.nan_to_num(7), torch.from_numpy(sample).bfloat16().nan_to_num(7))
    assert np.array_equal(to_float32(to_bfloat16(many)), torch.from_numpy(many).bfloat16().float())
    hostile = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], dtype=np.uint32).view(np.float32)
    assert np.isnan(to_float32(to_bfloat16(hostile))).all()


def test_large_weights_of_a_checkpoint_come_first(tmp_path: Path) -> None:
    """Those of a shape come in their order, which decides their random numbers."""
    write(tmp_path, {**SHAPES["tiny"]}, torch.float32)

    def made(model: str) -> list[int]:
        source = resolve_model(model)
        weights, _ = packed_loader.open_packer(
            source, read_spec(source.config), dtype="float32", weights=WeightFormats(F32), kernels=KERNELS,
            team=TEAM, largest_first=True,
        )  # fmt: skip
        return [weight.elements for weight in weights]

    sizes = made(str(tmp_path))
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]
    assert made("shape:tiny") != sizes


MEASURE = """
import sys
from headrace._native import Kernels, Team, available_kernels
from headrace.models.families import read_spec
from headrace.models.packed_loader import load_packed
from headrace.models.source import resolve_model
from headrace.quant.format import WeightFormats, parse_format
def memory(field):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(field))
source = resolve_model(sys.argv[1])
before = memory("VmRSS")
weights = load_packed(source, read_spec(source.config), dtype="bfloat16", weights=WeightFormats(parse_format("int4")),
                      kernels=Kernels(available_kernels()[0]), team=Team(2))
packed = weights.tables["embed"].nbytes + sum(matrix.weight.nbytes for matrix in weights.matrices.values())
print(before, memory("VmHWM"), packed, int("torch" in sys.modules))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_peak_memory_is_that_of_the_packed_model(tmp_path: Path) -> None:
    """200 MB of bfloat16 become 60 MB of int4; the pages of the file must not pile up beside them."""
    sizes = {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 7, "num_attention_heads": 16,
        "num_key_value_heads": 16, "vocab_size": 4096,
    }  # fmt: skip
    config = {**SHAPES["tiny"], **sizes, "torch_dtype": "bfloat16"}
    shapes = lower(read_spec(config), weight_names(read_spec(config))).tensors()
    write(tmp_path, config, torch.bfloat16)
    stored = 2 * sum(math.prod(shape) for shape in shapes.values())
    assert stored > 190_000_000
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    before, peak, packed, torch_loaded = map(int, run.stdout.split())
    assert packed < stored // 3
    assert peak - before < packed + (16 << 20)  # threads, numpy, pages beside the tensors
    assert not torch_loaded
