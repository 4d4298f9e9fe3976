"""Every family on the native kernels against transformers, through save_pretrained and our whole loading path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests import needs
from tests.instruction_sets import IN_TURN, SETS

_native = needs.native()


import headrace  # noqa: E402
from headrace.models.families import read_spec, weight_names  # noqa: E402
from headrace.models.packed_loader import load_packed  # noqa: E402
from headrace.models.source import BUNDLED, resolve_model  # noqa: E402
from headrace.models.spec import ModelSpec  # noqa: E402
from headrace.models.streaming import with_streaming  # noqa: E402
from headrace.program.lower import lower  # noqa: E402
from headrace.quant.format import WeightFormats, dense_format  # noqa: E402
from headrace.runner.native_decoder import NativeDecoder  # noqa: E402
from headrace.runner.native_kv import NativeKV  # noqa: E402
from headrace.runner.tape_memory import TapeLimits  # noqa: E402
from headrace.runner.torch_decoder import Decoder  # noqa: E402
from tests.conformance.test_families import (  # noqa: E402
    CASES,
    CHUNKS,
    Case,
    bfloat16_cases,
    check_bfloat16,
    expected_logits,
    has_experts,
    narrow,
    prompt,
)
from tests.conformance.test_streaming import SINKS, WINDOW, published  # noqa: E402
from tests.native.steps import PagedRun, groups_of  # noqa: E402

transformers = needs.lazily("transformers")

BLOCK_SIZE = 16
MAX_TOKENS = 256


def widened(case: Case) -> Case:
    """The case with heads of a multiple of 16 channels, which is what the kernels serve."""
    fields = {**case.fields, "hidden_size": case.fields.get("hidden_size", 64)}
    if "head_dim" in fields:
        fields["head_dim"] = -(-fields["head_dim"] // 16) * 16
    return replace(case, fields=fields)


def open_run(
    folder: Path | str,
    kernels: str,
    dtype: str = "float32",
    change: Callable[[ModelSpec], ModelSpec] = lambda spec: spec,
) -> PagedRun:
    source = resolve_model(str(folder))
    spec = change(read_spec(source.config, source.generation_config))
    table, team = _native.Kernels(kernels), _native.Team(2)
    weights = load_packed(
        source, spec, dtype=dtype, weights=WeightFormats(dense_format(dtype)), kernels=table, team=team
    )
    groups = groups_of(spec, BLOCK_SIZE)
    limits = TapeLimits(MAX_TOKENS, 16)
    model = NativeDecoder(
        lower(spec, weight_names(spec)),
        weights,
        NativeKV(spec.kv_shapes, groups, dtype),
        groups,
        table,
        team,
        limits,
    )
    return PagedRun(model, groups)


def distance(ours: NDArray[np.float32], theirs: torch.Tensor) -> float:
    return float(np.abs(ours - theirs.numpy()).max())


@pytest.mark.parametrize("sets", IN_TURN)
@pytest.mark.parametrize("name", CASES)
def test_logits_match(name: str, sets: list[str], tmp_path: Path) -> None:
    case, tokens = widened(CASES[name]), prompt()
    theirs = expected_logits(case.build(tmp_path), tokens)
    for kernels in sets:
        assert distance(open_run(tmp_path, kernels).step({0: tokens})[0], theirs) < 1e-4
        run = open_run(tmp_path, kernels)
        parts = [run.step({0: tokens[at:end]})[0] for at, end in CHUNKS]
        parts += [run.step({0: [token]})[0] for token in tokens[CHUNKS[-1][1] :]]
        assert distance(np.concatenate(parts), theirs) < 1e-4
        if all(group.window is not None and group.window < 40 for group in run.groups):
            assert run.total_dropped > 0


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-layer-types"])
def test_mixed_batch_matches_each_sequence_alone(name: str, tmp_path: Path) -> None:
    model = widened(CASES[name]).build(tmp_path)
    sequences = {s: prompt(length, seed=s) for s, length in enumerate((40, 7, 63, 22))}
    theirs = {s: expected_logits(model, tokens) for s, tokens in sequences.items()}
    run = open_run(tmp_path, SETS[0])
    run.step({0: sequences[0][:39], 1: sequences[1][:3]})
    run.step({2: sequences[2][:50], 1: sequences[1][3:6]})
    last = {1: sequences[1][6:], 2: sequences[2][50:], 0: sequences[0][39:], 3: sequences[3]}
    for s, logits in zip(last, run.step(last), strict=True):
        assert distance(logits, theirs[s][-len(logits) :]) < 1e-4


@pytest.mark.parametrize("sets", IN_TURN)
@pytest.mark.parametrize("name", bfloat16_cases())
def test_bfloat16_run(name: str, sets: list[str], tmp_path: Path) -> None:
    model = narrow(widened(CASES[name])).build(tmp_path, dtype=torch.bfloat16)
    theirs = expected_logits(model, prompt())
    for kernels in sets:
        ours = open_run(tmp_path, kernels, "bfloat16").step({0: prompt()})[0]
        check_bfloat16(torch.from_numpy(ours), theirs, has_experts(tmp_path))


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_model_says_what_transformers_says(name: str) -> None:
    folder = Path(headrace.__file__).parent / "bundled" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    run = open_run(name, SETS[0])
    tokens = [0, *torch.randint(6, 2048, (39,), generator=torch.Generator().manual_seed(0)).tolist()]
    start = len(tokens)
    got = [run.step({0: tokens})[0]]
    for _ in range(200):
        tokens.append(int(got[-1][-1].argmax()))
        got.append(run.step({0: tokens[-1:]})[0])
    theirs = expected_logits(model, tokens)
    assert distance(np.concatenate(got), theirs) < 1e-4
    assert tokens[start:] == theirs[start - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("sets", IN_TURN)
def test_attention_sinks_equal_the_published_scheme(
    sets: list[str], open_decoder: Callable[..., Decoder]
) -> None:
    def change(spec: ModelSpec) -> ModelSpec:
        return with_streaming(spec, SINKS, WINDOW)

    tokens = torch.randint(6, 2048, (130,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.inference_mode():
        want = published(open_decoder("tale", force="reference", change=change), tokens)
    for kernels in sets:
        run = open_run("tale", kernels, change=change)
        got: list[Any] = [run.step({0: tokens[:50]})[0], run.step({0: tokens[50:61]})[0]]
        got += [run.step({0: [token]})[0] for token in tokens[61:]]
        assert distance(np.concatenate(got), want) < 1e-4
        assert run.total_dropped > 0
