"""Models of the four families from quantised checkpoints against transformers with the weights that the codes mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from tests import needs

native = needs.native()

from headrace.build import Survey, survey  # noqa: E402
from headrace.config import EngineConfig  # noqa: E402
from headrace.errors import CheckpointError  # noqa: E402
from headrace.models import stored  # noqa: E402
from headrace.models.identity import weights_identity  # noqa: E402
from headrace.models.packed_loader import load_packed  # noqa: E402
from headrace.models.weights import Weights  # noqa: E402
from headrace.plan.weights import weight_bytes  # noqa: E402
from headrace.program.lower import lower  # noqa: E402
from headrace.quant.coded import dequantize  # noqa: E402
from headrace.quant.format import parse_format  # noqa: E402
from headrace.quant.rounding import encode  # noqa: E402
from headrace.runner.native_decoder import NativeDecoder  # noqa: E402
from headrace.runner.native_kv import NativeKV  # noqa: E402
from headrace.runner.tape_memory import TapeLimits  # noqa: E402
from tests.conformance.test_families import CASES as FAMILIES  # noqa: E402
from tests.conformance.test_families import expected_logits, prompt  # noqa: E402
from tests.models.quantized.models import FOUR, change, describe, family, quantize  # noqa: E402
from tests.models.quantized.packers import CASES, NATIVE, gptq  # noqa: E402
from tests.native.steps import PagedRun, groups_of  # noqa: E402

BLOCK_SIZE = 16
SOME = [
    "gptq-4-asym",
    "gptq-8",
    "gptq-4-act-order",
    "awq-gemm",
    "ct-int4-group",
    "ct-int8-channel",
    "ct-fp8-channel",
    "bnb-nf4-nested",
]
"""Methods that every family is tested with; the others are tested with one, and as layouts in the usual run."""
USUAL = ("gptq-4-act-order", "awq-gemm", "bnb-nf4-nested")
"""Those of all families in the usual run: a row of codes is read and packed alike in each."""


def load(folder: Path, **options: Any) -> tuple[Survey, Weights]:
    plan = survey(EngineConfig(str(folder), **{"dtype": "float32", **options}))
    kernels, formats = plan.resolved.kernels, plan.resolved.weight_formats
    assert kernels is not None and formats is not None
    table, team = native.Kernels(kernels), native.Team(2)
    return plan, load_packed(
        plan.source, plan.spec, dtype=plan.resolved.weights_dtype, weights=formats, kernels=table, team=team
    )


def logits(folder: Path, tokens: list[int], **options: Any) -> NDArray[np.float32]:
    plan, weights = load(folder, **options)
    assert plan.resolved.kernels is not None
    table, team = native.Kernels(plan.resolved.kernels), native.Team(2)
    groups = groups_of(plan.spec, BLOCK_SIZE)
    kv = NativeKV(plan.spec.kv_shapes, groups, plan.resolved.kv_cache_dtype)
    model = NativeDecoder(lower(plan.spec), weights, kv, groups, table, team, TapeLimits(256, 16))
    made: NDArray[np.float32] = PagedRun(model, groups).step({0: tokens})[0]
    return made


def error(ours: NDArray[np.float32], theirs: torch.Tensor) -> float:
    """Of all logits, as a part of their norm."""
    difference = ours - theirs.numpy()
    return float(np.linalg.norm(difference) / np.linalg.norm(theirs.numpy()))


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *(
            pytest.param(FOUR[0], method, marks=() if method in SOME else pytest.mark.long)
            for method in CASES
        ),
        *(
            pytest.param(name, method, marks=() if method in USUAL else pytest.mark.long)
            for name in FOUR[1:]
            for method in SOME
        ),
    ],
)
def test_logits_match(name: str, method: str, tmp_path: Path) -> None:
    model = family(name).build(tmp_path)
    quantize(tmp_path, model, CASES[method])
    theirs = expected_logits(model, prompt())
    assert error(logits(tmp_path, prompt(), quantization="a16"), theirs) < 1e-2
    assert error(logits(tmp_path, prompt(), quantization="a8"), theirs) < 6e-2
    if method not in NATIVE:  # decoded, so that nothing is rounded
        assert error(logits(tmp_path, prompt(), quantization="a8"), theirs) < 1e-4
    plan, loaded = load(tmp_path)
    formats = plan.resolved.weight_formats
    assert formats is not None and (not formats.decoded) == (method in NATIVE)
    for ref in lower(plan.spec).weights:
        if ref.kind == "matrix":
            asked = formats.of(ref.name).packed_bytes(
                ref.rows, ref.columns, gated=ref.gated, bias=bool(ref.biases)
            )
            assert loaded.matrices[ref.name].weight.nbytes == asked


@pytest.mark.parametrize(
    "name",
    ["gpt-neox", *(pytest.param(one, marks=pytest.mark.long) for one in ("bloom", "gpt2"))],
)
@pytest.mark.parametrize(
    "method",
    [
        "gptq-4-act-order",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("ct-int8-channel", "bnb-nf4-nested")),
    ],
)
def test_codes_of_matrices_that_are_arranged_otherwise(name: str, method: str, tmp_path: Path) -> None:
    """Others make codes of what the module multiplies with: of GPT-NeoX and Bloom q, k and v of a head together, of
    GPT-2 the transposed matrix."""
    case = FAMILIES[name]
    width = {"n_embd": 64, "hidden_size": 64} if name == "gpt2" else {}  # whole groups
    model = replace(case, fields={**case.fields, **width}).build(tmp_path)
    quantize(tmp_path, model, CASES[method])
    theirs = expected_logits(model, prompt())
    assert error(logits(tmp_path, prompt(), quantization="a16"), theirs) < 1e-2


def test_blocks_of_rows_that_are_stored_by_head(tmp_path: Path) -> None:
    quantize(tmp_path, FAMILIES["gpt-neox"].build(tmp_path), CASES["ct-fp8-block"])
    with pytest.raises(CheckpointError, match=r"query_key_value has its rows by head, and scales for blocks"):
        load(tmp_path)


def test_a_start_opens_the_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To plan, to load, and for the identity of the weights; codes are found once too."""
    quantize(tmp_path, family(FOUR[0]).build(tmp_path), CASES["gptq-4-asym"])
    made: list[str] = []

    def counted(name: str) -> None:
        original = getattr(stored, name)
        monkeypatch.setattr(stored, name, lambda *given: [made.append(name), original(*given)][1])

    counted("open_checkpoint")
    counted("find_coded")
    plan, _ = load(tmp_path)
    weights_identity(plan.source, 0)
    assert made == ["open_checkpoint", "find_coded"]


@pytest.mark.parametrize("method", ["gptq-4-asym", "ct-fp8-block", "bnb-nf4-nested"])
def test_torch_runs_them_too(method: str, tmp_path: Path, open_decoder: Any, paged_run: Any) -> None:
    model = family(FOUR[3]).build(tmp_path)
    quantize(tmp_path, model, CASES[method])
    theirs = expected_logits(model, prompt())
    ours = paged_run(open_decoder(tmp_path)).step({0: prompt()})[0]
    assert error(ours.numpy(), theirs) < 1e-5


def test_each_matrix_has_its_own_format(tmp_path: Path) -> None:
    """Codes where a kernel reads them, floats where none does, and a head that the checkpoint leaves alone."""
    model = family(FOUR[0]).build(tmp_path)
    quantize(tmp_path, model, CASES["gptq-4"])
    rows, columns = 64, 96
    odd, weights = gptq(4, 8).pack(rows, columns, np.random.default_rng(9))
    plain = torch.randn(64, 64) * 0.15
    down, out = "model.layers.1.mlp.down_proj", "model.layers.2.self_attn.o_proj"
    left_out = {f"{out}{suffix}": None for suffix in (".qweight", ".qzeros", ".scales", ".g_idx")}
    change(
        tmp_path,
        {**{down + suffix: part for suffix, part in odd.items()}, **left_out, f"{out}.weight": plain},
    )
    config = {**CASES["gptq-4"].config, "dynamic": {"+:.*1.mlp.down_proj": {"group_size": 8}}}
    describe(tmp_path, quantization_config=config)
    state = model.state_dict()
    state[f"{down}.weight"].copy_(weights)
    state[f"{out}.weight"].copy_(plain)

    plan, loaded = load(tmp_path)
    formats = plan.resolved.weight_formats
    assert formats is not None
    assert {name: loaded.matrices[name].format for name in ("0.qkv", "1.down", "2.out", "head")} == {
        "0.qkv": "int4-g32-a16", "1.down": "f32", "2.out": "f32", "head": "f32",
    }  # fmt: skip
    assert [name for name, _ in formats.decoded] == ["1.down"]
    held = {"attention": 0, "feed-forward": 0, "head": 0}
    for ref in lower(plan.spec).weights:
        if ref.kind == "matrix":
            assert loaded.matrices[ref.name].format == formats.of(ref.name).name
            held[ref.part] += loaded.matrices[ref.name].weight.nbytes
    lines = {line.name: line for line in weight_bytes(lower(plan.spec), plan.resolved.memory_format)}
    assert {name: lines[name].bytes for name in held} == held
    assert "decoded from 4-bit integers, f16 scale a group of 8" in lines["feed-forward"].how
    assert "floats for 1 of them" in dict(plan.resolved.reasons)["weight_formats"]
    theirs = expected_logits(model, prompt())
    assert error(logits(tmp_path, prompt()), theirs) < 1e-2


def test_parts_of_different_formats_are_matrices_of_their_own(tmp_path: Path) -> None:
    """q and k of 4 bits, v of 8."""
    model = family(FOUR[0]).build(tmp_path)
    quantize(tmp_path, model, CASES["gptq-4-asym"])
    eight, state = CASES["gptq-8"], model.state_dict()
    changes: dict[str, Any] = {}
    for layer in range(3):
        module = f"model.layers.{layer}.self_attn.v_proj"
        parts, weights = eight.pack(32, 64, np.random.default_rng(layer))
        changes |= {module + suffix: part for suffix, part in parts.items()}
        state[f"{module}.weight"].copy_(weights)
    change(tmp_path, changes)
    describe(
        tmp_path, quantization_config={**CASES["gptq-4-asym"].config, "dynamic": {"+:.*v_proj": {"bits": 8}}}
    )
    plan, loaded = load(tmp_path)
    assert (
        loaded.matrices["0.qk"].format == "int4-g32-asym-a16"
        and loaded.matrices["0.v"].format == "int8-g32-a16"
        and loaded.matrices["0.out"].format == "int4-g32-asym-a16"
    )
    assert plan.spec.codes is not None and {one.bits for _, one in plan.spec.codes.formats} == {4, 8}
    theirs = expected_logits(model, prompt())
    assert error(logits(tmp_path, prompt()), theirs) < 1e-2


def test_one_expert_may_be_stored_otherwise_than_all_others(tmp_path: Path) -> None:
    """A product of experts has one format: where the part of one has another one, it is decoded to floats."""
    case = FAMILIES["qwen3-moe-normalized"]
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "num_hidden_layers": 1}
    replace(case, fields={**case.fields, **sizes}).build(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    draw, odd = np.random.default_rng(4), "model.layers.0.mlp.experts.2.up_proj"
    four, eight = CASES["gptq-4"], CASES["gptq-8"]
    codes: dict[str, torch.Tensor | None] = {}
    floats: dict[str, torch.Tensor | None] = {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        module = name.removesuffix(".weight")
        rows, columns = tensors[name].shape
        parts, weights = (eight if module == odd else four).pack(rows, columns, draw)
        codes |= {name: None, **{module + suffix: part for suffix, part in parts.items()}}
        floats[name] = weights
    change(tmp_path, floats)
    expected = logits(tmp_path, prompt())
    change(tmp_path, codes)
    describe(tmp_path, quantization_config={**four.config, "dynamic": {"+:.*experts.2.up_proj": {"bits": 8}}})
    plan, loaded = load(tmp_path)
    assert loaded.matrices["0.experts_gate_up"].format == "f32"
    assert loaded.matrices["0.experts_down"].format == "int4-g32-a16"
    assert plan.resolved.weight_formats is not None
    assert [name for name, _ in plan.resolved.weight_formats.decoded] == ["0.experts_gate_up"]
    assert error(logits(tmp_path, prompt()), torch.from_numpy(expected)) < 5e-2


def test_parts_of_different_activation_orders_are_matrices_of_their_own(tmp_path: Path) -> None:
    """GPTQ gives q, k and v the same order, because they read the same activations."""
    model = family(FOUR[0]).build(tmp_path)
    quantize(tmp_path, model, CASES["gptq-4-act-order"])
    module = "model.layers.0.self_attn.k_proj"
    parts, _ = CASES["gptq-4-act-order"].pack(32, 64, np.random.default_rng(0))
    parts[".g_idx"] = 1 - parts[".g_idx"]
    change(tmp_path, {module + suffix: part for suffix, part in parts.items()})
    plan, loaded = load(tmp_path)
    assert (
        loaded.matrices["0.q"].format
        == loaded.matrices["0.k"].format
        == loaded.matrices["1.qkv"].format
        == "int4-g32-a16-ordered"
    )
    assert plan.resolved.weight_formats is not None and not plan.resolved.weight_formats.decoded


@pytest.mark.parametrize("name", ["nf4", "fp8", "mxfp4", "mxfp4-a16"])
def test_weights_may_be_rounded_to_tables_at_load(name: str, tmp_path: Path) -> None:
    """Against transformers with the weights that the codes mean."""
    model = family(FOUR[0]).build(tmp_path)
    state, format = model.state_dict(), parse_format(name)
    for key, weight in state.items():
        if key.endswith("_proj.weight") or key == "lm_head.weight":
            weight.copy_(torch.from_numpy(dequantize(encode(weight.numpy(), format))))
    plan, loaded = load(tmp_path, quantization=name)
    assert loaded.formats == (name,)
    for ref in lower(plan.spec).weights:
        if ref.kind == "matrix":
            size = format.packed_bytes(ref.rows, ref.columns, gated=ref.gated)
            assert loaded.matrices[ref.name].weight.nbytes == size
    theirs = expected_logits(model, prompt())
    assert error(logits(tmp_path, prompt(), quantization=name), theirs) < (
        4e-2 if name == "mxfp4" else 1.5e-2
    )


@pytest.mark.parametrize("method", ["gptq-4", "fp8-small-blocks"])
def test_codes_may_be_rounded_to_others_at_load(method: str, tmp_path: Path) -> None:
    model = family(FOUR[0]).build(tmp_path)
    quantize(tmp_path, model, CASES[method])
    _, loaded = load(tmp_path, quantization="int8-g32-a16")
    assert loaded.formats == ("int8-g32-a16",)
    theirs = expected_logits(model, prompt())
    assert error(logits(tmp_path, prompt(), quantization="int8-g32-a16"), theirs) < 2e-2


def test_biases_of_zeros_are_accepted(tmp_path: Path) -> None:
    """Some exporters add a bias to every matrix that they quantise."""
    model = family(FOUR[0]).build(tmp_path)
    quantize(tmp_path, model, CASES["gptq-4"])
    module = "model.layers.0.self_attn.q_proj"
    change(tmp_path, {f"{module}.bias": torch.zeros(64, dtype=torch.float16)})
    load(tmp_path)
    change(tmp_path, {f"{module}.bias": torch.ones(64, dtype=torch.float16)})
    with pytest.raises(Exception, match=f"holds tensor '{module}.bias'"):
        load(tmp_path)


def test_f16_checkpoints_keep_their_bits(tmp_path: Path) -> None:
    """Scales, embeddings and head of float16 are computed with in float32, not by way of bfloat16."""
    model = family(FOUR[2]).build(tmp_path, dtype=torch.float16)
    theirs = expected_logits(model, prompt())
    plan, loaded = load(tmp_path, dtype="auto")
    assert (plan.resolved.dtype, plan.resolved.weights_dtype) == ("float32", "float16")
    assert loaded.tables["embed"].dtype == np.float16
    assert error(logits(tmp_path, prompt(), dtype="auto"), theirs) < 1e-5


def test_the_options_for_activations_need_codes(tmp_path: Path) -> None:
    family(FOUR[0]).build(tmp_path)
    with pytest.raises(Exception, match="this one is not quantised"):
        survey(EngineConfig(str(tmp_path), quantization="a16"))
