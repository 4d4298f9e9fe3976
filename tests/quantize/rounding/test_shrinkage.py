"""Codes of least error shrink their rows; half of it is undone for feed-forward matrices."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from headrace.models.families import read_spec, weight_names
from headrace.models.loader import load_weights
from headrace.models.source import ModelSource, resolve_model
from headrace.models.stored import stored_spec
from headrace.models.weights import Weights
from headrace.program.lower import lower
from headrace.program.records import WeightRef
from headrace.quantize.calibration.walk import segments
from headrace.quantize.gguf.grids import GRIDS
from headrace.quantize.gguf.rounding import gptq_blocks, nearest
from headrace.quantize.gguf.run import GGUFOptions, quantize_gguf
from headrace.quantize.matrices import layer_matrices, stacked
from headrace.quantize.options import QuantizeOptions
from headrace.quantize.rounding.gptq import Order, gptq
from headrace.quantize.rounding.scheme import Codes, Scheme, rtn
from headrace.quantize.rounding.shrinkage import row_factors, unshrunk
from headrace.quantize.run import quantize
from tests.places import TALE
from tests.tiny_checkpoint import CONFIGS, write

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
@pytest.mark.parametrize("order", [None, "static", "group"])
def test_half_of_what_rows_lost_is_undone(order: Order | None, symmetric: bool) -> None:
    weight, x = matrix(), inputs()
    hessian = x.T @ x / len(x)
    first = gptq(weight, hessian, Scheme(2, 32, symmetric, clip=True), order)
    found = unshrunk(weight, first, hessian)
    before, after = (kept(weight, one.dequantize(), x) for one in (first, found))
    assert float(before.mean()) < 0.99
    torch.testing.assert_close(after, before.sqrt(), rtol=0, atol=5e-4)  # scales are float16
    assert torch.equal(found.codes, first.codes) and torch.equal(found.zeros, first.zeros)
    assert torch.equal(found.groups(), first.groups())
    ratios = found.scales.double() / first.scales.double()
    torch.testing.assert_close(ratios, ratios[:, :1].expand_as(ratios), rtol=1.5e-3, atol=0)


@pytest.mark.parametrize("name", GRIDS)
def test_half_of_it_is_undone_in_blocks_of_gguf_types(name: str) -> None:
    weight, x = matrix(), inputs()
    hessian = x.T @ x / len(x)
    for first in (nearest(weight, GRIDS[name]), gptq_blocks(weight, hessian, GRIDS[name])):
        found = first.times(row_factors(weight, first.dequantize(), hessian))
        before, after = (kept(weight, one.dequantize(), x) for one in (first, found))
        torch.testing.assert_close(after, before.sqrt(), rtol=0, atol=6e-4)
        assert torch.equal(found.codes, first.codes)


EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "rope_theta": 10_000.0, "torch_dtype": "float32", "head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True,
}  # fmt: skip


def model(folder: Path, experts: bool) -> ModelSource:
    folder.mkdir()
    if experts:
        spec, rng = read_spec(EXPERTS), np.random.default_rng(0)
        shapes = lower(spec, weight_names(spec), narrow=False).tensors()
        tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(EXPERTS))
    else:
        write(folder, CONFIGS["mistral"] | {"num_hidden_layers": 2})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TALE / name, folder)
    return resolve_model(str(folder))


def matrices(source: ModelSource) -> tuple[list[WeightRef], Weights]:
    """Those of layers, and all weights as float32."""
    spec = stored_spec(source)
    program = lower(spec, weight_names(spec), narrow=False)
    refs = [weight for segment in segments(program) for weight in layer_matrices(segment)]
    return refs, load_weights(source, spec, dtype=torch.float32)


@pytest.mark.parametrize("how", ["rtn --clip", "gguf"])
@pytest.mark.parametrize("experts", [False, True])
def test_feed_forward_matrices_of_models_keep_their_norms(experts: bool, how: str, tmp_path: Path) -> None:
    source = model(tmp_path / "model", experts)
    spec, out = stored_spec(source), tmp_path / "out"
    if how == "gguf":
        quantize_gguf(source, spec, GGUFOptions("Q4_0", "rtn"), [], out, num_threads=1)
    else:
        options = QuantizeOptions("rtn", bits=2, group=32, clip=True, format="gptq")
        quantize(source, spec, options, [], out, num_threads=1)
    refs, before = matrices(source)
    _, after = matrices(resolve_model(str(out)))
    parts = Counter(weight.part for weight in refs)
    assert parts["attention"] and parts["feed-forward"]
    for weight in refs:
        exact, found = (stacked(one, weight).double() for one in (before, after))
        norms = (found.square().sum(-1) / exact.square().sum(-1)).sqrt().flatten()
        lost = float((1 - norms).mean()) / float((found - exact).square().sum() / exact.square().sum())
        assert abs(lost) < 0.02 if weight.part == "feed-forward" else lost > 0.4


@pytest.mark.parametrize(
    ("method", "clip", "changed"),
    [("gptq", True, True), ("gptq", False, False), ("awq", False, True), ("awq-gptq", True, True)],
)
def test_ranges_that_are_whole_stay(
    method: str, clip: bool, changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = model(tmp_path / "model", False)
    texts = [tuple((7 * text + 3 * at * at) % 2000 for at in range(24)) for text in range(4)]
    options = QuantizeOptions(method, bits=3, group=32, clip=clip, format="gptq")
    for name in ("grown", "shrunk"):
        quantize(source, stored_spec(source), options, texts, tmp_path / name, num_threads=1)
        monkeypatch.setattr("headrace.quantize.run.grows", lambda weight: False)
    refs, first = matrices(resolve_model(str(tmp_path / "shrunk")))
    _, second = matrices(resolve_model(str(tmp_path / "grown")))
    for weight in refs[:4]:  # later layers have other inputs
        same = torch.equal(stacked(first, weight), stacked(second, weight))
        assert same != (changed and weight.part == "feed-forward"), weight.name


def test_factors_are_those_of_the_products() -> None:
    weight, x = matrix(), inputs()
    rounded = rtn(weight, Scheme(3, 32)).dequantize()
    for power, seen in (
        (x.T @ x, x),
        ((x.T @ x).diagonal(), (x.T @ x).diagonal().sqrt().diag()),
        (None, torch.eye(COLUMNS)),
    ):
        found = row_factors(weight, rounded, power).double()
        torch.testing.assert_close(found, kept(weight, rounded, seen).rsqrt(), rtol=1e-5, atol=0)


def test_rows_that_have_lost_their_direction_stay() -> None:
    weight = torch.ones(6, 32)
    weight[4] = 0.0
    rounded = torch.stack([torch.full((32,), one) for one in (0.0, -1.0, 0.4, 3.0, 1.0, 0.8)])
    found = row_factors(weight, rounded, torch.eye(32))
    torch.testing.assert_close(found, torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.25]).sqrt())
    assert torch.equal(row_factors(weight, rounded, torch.zeros(32, 32)), torch.ones(6))
    codes = Codes(
        Scheme(4, 32), torch.full((6, 32), 9, dtype=torch.uint8), torch.zeros(6, 1).half(),
        torch.full((6, 1), 8, dtype=torch.uint8),
    )  # fmt: skip
    assert torch.equal(unshrunk(weight, codes).scales, codes.scales)
