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
from headrace.quantize.rounding.gptq import Order, gptq, relative_error
from headrace.quantize.rounding.scheme import Codes, Scheme, rtn
from headrace.quantize.rounding.shrinkage import rescaled, row_factors
from headrace.quantize.run import quantize
from tests.places import TALE
from tests.tiny_checkpoint import CONFIGS, write

COLUMNS = 256
TEXTS = [tuple((7 * text + 3 * at * at) % 2000 for at in range(24)) for text in range(4)]


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
    found = rescaled(weight, first, hessian)
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
        found = first.rescaled(row_factors(weight, first.dequantize(), hessian))
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
    [
        ("gptq", True, True),
        ("gptq", False, False),
        ("awq", False, True),
        ("awq-gptq", False, False),
        ("awq-gptq", True, True),
    ],
)
def test_only_rows_of_clipped_feed_forward_matrices_change(
    method: str, clip: bool, changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = model(tmp_path / "model", False)
    options = QuantizeOptions(method, bits=3, group=32, clip=clip, format="gptq")
    for name in ("scaled", "plain"):
        quantize(source, stored_spec(source), options, TEXTS, tmp_path / name, num_threads=1)
        monkeypatch.setattr("headrace.quantize.run.is_rescaled", lambda weight: False)
    refs, first = matrices(resolve_model(str(tmp_path / "plain")))
    _, second = matrices(resolve_model(str(tmp_path / "scaled")))
    for weight in refs[:4]:  # later layers have other inputs
        same = torch.equal(stacked(first, weight), stacked(second, weight))
        assert same != (changed and weight.part == "feed-forward"), weight.name


@pytest.mark.parametrize("bits", [3, 4])
def test_scales_that_are_stored_coarsely_make_up_for_each_other(bits: int) -> None:
    weight, x = matrix(64), inputs()
    hessian = x.T @ x / len(x)
    first = gptq(weight, hessian, Scheme(bits, 16, clip=True, scale="bf16"))
    found = rescaled(weight, first, hessian)
    assert found.scales.dtype == torch.bfloat16 and torch.equal(found.codes, first.codes)
    factors = row_factors(weight, first.dequantize(), hessian).double()
    grown = (found.scales.double() / first.scales.double()).log().sum(-1)
    missed = grown - found.scales.shape[1] * factors.log()
    assert float(missed.abs().max()) < 2.0**-8  # half a step of the last scale, not of each


@pytest.mark.parametrize("chunk", [1 << 22, 3 * COLUMNS])
def test_factors_are_those_of_the_products(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.quantize.rounding.shrinkage._CHUNK", chunk)
    weight, x = matrix(), inputs()
    rounded = rtn(weight, Scheme(3, 32)).dequantize()
    diagonal = (x.T @ x).diagonal()
    for power, seen in ((x.T @ x, x), (diagonal, diagonal.sqrt().diag()), (None, torch.eye(COLUMNS))):
        found = row_factors(weight, rounded, power).double()
        torch.testing.assert_close(found, kept(weight, rounded, seen).rsqrt(), rtol=1e-5, atol=0)


def test_factors_stay_near_to_one() -> None:
    weight = torch.ones(7, 32)
    weight[4] = 0.0
    rounded = torch.stack([torch.full((32,), one) for one in (0.0, -1.0, 0.4, 3.0, 1.0, 0.8, 0.55)])
    found = row_factors(weight, rounded, torch.eye(32)).square()
    torch.testing.assert_close(found, torch.tensor([1.0, 1.0, 2.0, 0.5, 1.0, 1.25, 1 / 0.55]))
    assert torch.equal(row_factors(weight, rounded, torch.zeros(32, 32)), torch.ones(7))


@pytest.mark.parametrize("scale", [0.0, 65504.0])
def test_scales_stay_what_can_be_stored(scale: float) -> None:
    weight = torch.full((2, 64), 65504.0 * 4)
    codes = Codes(
        Scheme(4, 32), torch.full((2, 64), 11, dtype=torch.uint8), torch.full((2, 2), scale).half(),
        torch.full((2, 2), 8, dtype=torch.uint8),
    )  # fmt: skip
    assert torch.equal(rescaled(weight, codes).scales, codes.scales)
    blocks = nearest(torch.linspace(-7e4, 9e4, 512).reshape(2, 256) * 8, GRIDS["Q4_0"])
    assert bool(torch.isfinite(blocks.rescaled(torch.full((2,), 1.4)).dequantize()).all())


def test_scales_that_cannot_grow_leave_the_others_alone() -> None:
    weight = torch.full((1, 160), 7e5)
    weight[:, 128:] = 3.0
    codes = Codes(
        Scheme(4, 32), torch.full((1, 160), 12, dtype=torch.uint8), torch.tensor([[65504.0] * 4 + [1.0]]).half(),
        torch.full((1, 5), 8, dtype=torch.uint8),
    )  # fmt: skip
    found = rescaled(weight, codes)
    assert found.scales[0, :4].tolist() == [65504.0] * 4
    assert 1.3 < float(found.scales[0, 4]) < 1.45


def test_what_no_input_reaches_does_not_count_where_codes_saw_the_inputs() -> None:
    """A large weight of a dead input is clipped, and does not scale the row."""
    weight, power = matrix(), inputs().square().mean(0)
    weight[:, 5], power[5] = 40.0, 0.0
    for name in ("Q4_K", "Q5_K", "Q8_0"):
        found = nearest(weight, GRIDS[name], power)
        factors = row_factors(weight, found.dequantize(), power)
        assert float((factors - 1).abs().max()) < 0.02
        assert float((row_factors(weight, found.dequantize(), None) - 1).abs().max()) > 0.02 or name == "Q8_0"


@pytest.mark.parametrize("how", ["gptq", "awq", "awq-gptq", "Q4_K", "Q2_K"])
def test_factors_are_of_the_products_that_codes_were_chosen_for(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the written weights, what AWQ did to them and to their inputs included."""
    source = model(tmp_path / "model", False)
    spec = stored_spec(source)
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def spied(weight: torch.Tensor, rounded: torch.Tensor, hessian: torch.Tensor | None) -> torch.Tensor:
        assert hessian is not None
        seen.append((weight.clone(), rounded.clone(), hessian.clone()))
        return row_factors(weight, rounded, hessian)

    gguf = how.startswith("Q")
    if gguf:
        monkeypatch.setattr("headrace.quantize.gguf.run.row_factors", spied)
        report = quantize_gguf(source, spec, GGUFOptions(how), TEXTS, tmp_path / "out", num_threads=1)
    else:
        monkeypatch.setattr("headrace.quantize.rounding.shrinkage.row_factors", spied)
        options = QuantizeOptions(how, bits=3, group=32, clip=True, format="gptq")
        report = quantize(source, spec, options, TEXTS, tmp_path / "out", num_threads=1)
    refs, after = matrices(resolve_model(str(tmp_path / "out")))
    scaled = [one for one in refs if one.part == "feed-forward"]
    written = [stacked(after, one)[0].split([rows for _, rows in one.parts]) for one in scaled]
    parts = [part for one in written for part in one] if gguf else [torch.cat(one) for one in written]
    assert len(seen) == len(parts)
    for (weight, rounded, hessian), now in zip(seen, parts, strict=True):
        products = weight @ hessian
        before, after_it = ((products * one).sum(-1) / (products * weight).sum(-1) for one in (rounded, now))
        torch.testing.assert_close(after_it, before.sqrt(), rtol=0, atol=1e-3)
        assert float((1 - before).abs().max()) > 5e-3
    if not gguf:
        for one, (weight, _, hessian), now in zip(scaled, seen, parts, strict=True):
            assert report.errors[one.name] == pytest.approx(relative_error(weight, now, hessian), rel=1e-4)


def test_codes_that_saw_no_inputs_get_factors_of_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few inputs, or one that is far larger than the others, products say nothing of such codes."""
    source = model(tmp_path / "model", False)
    spec = stored_spec(source)
    for texts, name in (([], "none"), (TEXTS, "some")):
        options = QuantizeOptions("rtn", bits=3, group=32, clip=True, format="gptq")
        quantize(source, spec, options, texts, tmp_path / name, num_threads=1)
    refs, first = matrices(resolve_model(str(tmp_path / "none")))
    _, second = matrices(resolve_model(str(tmp_path / "some")))
    assert all(torch.equal(stacked(first, one), stacked(second, one)) for one in refs)

    def spied(weight: torch.Tensor, rounded: torch.Tensor, hessian: torch.Tensor | None) -> torch.Tensor:
        assert hessian is not None and hessian.shape == (weight.shape[1],)
        return row_factors(weight, rounded, hessian)

    monkeypatch.setattr("headrace.quantize.gguf.run.row_factors", spied)
    quantize_gguf(source, spec, GGUFOptions("Q4_K", "rtn"), TEXTS, tmp_path / "gguf", num_threads=1)


def test_the_head_and_floats_stay(tmp_path: Path) -> None:
    source = model(tmp_path / "model", False)
    spec = stored_spec(source)
    options = QuantizeOptions("rtn", bits=2, group=32, clip=True, format="gptq", head=True)
    quantize(source, spec, options, [], tmp_path / "out", num_threads=1)
    exact, found = (
        load_weights(one, stored_spec(one), dtype=torch.float32).matrices["head"].weight
        for one in (source, resolve_model(str(tmp_path / "out")))
    )
    assert isinstance(exact, torch.Tensor) and isinstance(found, torch.Tensor)
    assert float(found.square().sum() / exact.square().sum()) < 0.99
    floats = QuantizeOptions("fp8", bits=8, group=None, clip=True)
    assert quantize(source, spec, floats, TEXTS, tmp_path / "fp8", num_threads=1).errors
