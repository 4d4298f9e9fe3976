"""Mixtures of experts in the native kernels: the choice, the grouped product, and rows that share experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests import needs
from tests.instruction_sets import BEST, parameters

_native = needs.native()

from headrace.ops import reference  # noqa: E402
from tests.native.steps import PagedRun, groups_of  # noqa: E402
from tests.native.tiny_models import (  # noqa: E402
    ATTENTION,
    EXPERT,
    EXPERTS,
    INPUTS,
    SPECS,
    model,
    native_model,
    random_weights,
)
from tests.ops.test_experts import OPTIONS, ROUTERS  # noqa: E402

SHARED = [name for name, spec in SPECS.items() if name.startswith("experts")]


@pytest.mark.parametrize("kernels", parameters())
@pytest.mark.parametrize("name", ROUTERS)
def test_every_row_goes_to_the_references_experts(name: str, kernels: str) -> None:
    generator = torch.Generator().manual_seed(3)
    logits, bias = torch.randn(70, 12, generator=generator) * 2, torch.randn(12, generator=generator) * 0.1
    options = {**OPTIONS, **ROUTERS[name]}
    scales = torch.rand(12, generator=generator) + 0.5
    experts, weights = reference.route(logits, bias, scales, **options)
    chosen, values, _, places, sources, begins = _native.route(
        _native.Kernels(kernels),
        _native.Team(3),
        logits.numpy(),
        num_experts=12,
        bias=bias.numpy(),
        expert_scale=scales.numpy(),
        **options,
    )
    assert np.array_equal(chosen, experts.numpy())
    assert np.abs(values - weights.numpy()).max() < 1e-6
    flat = chosen.reshape(-1)
    order = np.argsort(flat, kind="stable")
    assert np.array_equal(sources, order // options["top_k"])
    assert np.array_equal(places.reshape(-1)[order], np.arange(len(flat)))
    assert np.array_equal(begins, np.searchsorted(flat[order], np.arange(13)))


@pytest.mark.parametrize("kernels", parameters())
def test_logits_that_are_no_numbers_still_name_experts(kernels: str) -> None:
    logits = np.array([[np.nan] * 6, [np.inf, -np.inf] * 3, [-np.inf] * 6], dtype=np.float32)
    for scores in ("softmax", "sigmoid", "softmax_chosen"):
        chosen, *_ = _native.route(
            _native.Kernels(kernels), _native.Team(1), logits, num_experts=6, top_k=4, scores=scores
        )
        for row in chosen:
            assert len(set(row.tolist())) == 4 and row.min() >= 0 and row.max() < 6


@pytest.mark.parametrize(
    "options",
    [
        {"num_experts": 4, "top_k": 5},
        {"num_experts": 8, "top_k": 2, "groups": 3, "top_groups": 1},
        {"num_experts": 8, "top_k": 3, "groups": 4, "top_groups": 1},
        {"num_experts": 8, "top_k": 1, "groups": 8, "top_groups": 2, "group_score": "top2"},
    ],
)
def test_choices_that_cannot_be_made_are_refused(options: dict[str, Any]) -> None:
    logits = np.zeros((2, options["num_experts"]), dtype=np.float32)
    with pytest.raises(ValueError):
        _native.route(_native.Kernels(BEST), _native.Team(1), logits, **options)


@pytest.mark.parametrize("gate", ["none", "silu", "swiglu_oai"])
@pytest.mark.parametrize("format", INPUTS)
@pytest.mark.parametrize("kernels", parameters())
def test_routed_rows_are_the_rows_of_each_experts_product(kernels: str, format: str, gate: str) -> None:
    table, team = _native.Kernels(kernels), _native.Team(3)
    random = np.random.default_rng(5)
    weights = random.standard_normal((5, 72, 100), dtype=np.float32)
    biases = random.standard_normal((5, 72), dtype=np.float32)
    begins = np.array([0, 3, 3, 20, 21, 130], dtype=np.int32)
    x = random.standard_normal((130, 100), dtype=np.float32)
    gated = gate != "none"
    settings: dict[str, Any] = {
        "gate": gated,
        "input": INPUTS[format],
        "group": 32 if format == "int4" else 0,
    }
    parts = [[*np.split(one, 2)] if gated else [one] for one in weights]
    matrix = _native.PackedMatrix(table, team, format, parts[0], bias=biases[0], experts=5, **settings)
    for number in range(1, 5):
        matrix.put(table, team, number, parts[number], biases[number])
    call: dict[str, Any] = {"epilogue": "gate" if gated else "store", "gate": gate}
    found = _native.expert_linear(table, team, x, matrix, begins, **call)
    for number in range(5):
        alone = _native.PackedMatrix(table, team, format, parts[number], bias=biases[number], **settings)
        rows = slice(begins[number], begins[number + 1])
        if begins[number] < begins[number + 1]:
            assert np.array_equal(found[rows], _native.linear(table, team, x[rows], alone, **call))


def test_experts_unlike_the_first_are_refused() -> None:
    table, team = _native.Kernels(BEST), _native.Team(1)
    ones = np.ones((32, 64), dtype=np.float32)
    matrix = _native.PackedMatrix(table, team, "f32", [ones], input="f32", experts=3)
    assert (matrix.experts, matrix.rows, len(matrix.panels)) == (3, 32, 6)
    for number, part, bias in (
        (3, ones, None),
        (-1, ones, None),
        (1, ones[:31], None),
        (1, np.ones((32, 63), dtype=np.float32), None),
        (1, ones, np.ones(32, dtype=np.float32)),
    ):
        with pytest.raises(ValueError):
            matrix.put(table, team, number, [part], bias)
    with pytest.raises(ValueError, match="routing"):
        _native.linear(table, team, ones, matrix)


@pytest.mark.parametrize("format", INPUTS)
@pytest.mark.parametrize("kernels", parameters())
def test_a_row_alone_and_among_64_others_has_the_same_bits(kernels: str, format: str) -> None:
    """Its company decides how many rows each of its experts has."""
    for name in SHARED:
        spec = SPECS[name]
        weights = random_weights(spec)

        def run(weights: Any = weights, spec: Any = spec) -> PagedRun:
            made = native_model(spec, weights, 16, kernels, format=format, threads=3)
            return PagedRun(made, groups_of(spec, 16))

        prompts = {s: [(7 * s + 3 * i) % 131 for i in range(1 + s % 4)] for s in range(33)}
        together = dict(zip(prompts, run().step(prompts), strict=True))
        assert sum(map(len, prompts.values())) > 65
        for s in (0, 3, 32):
            assert np.array_equal(run().step({s: prompts[s]})[0], together[s]), name


@pytest.mark.parametrize("experts", [8, 64])
def test_work_grows_with_the_routed_rows_and_not_with_the_experts(experts: int) -> None:
    spec = model(ATTENTION, mlp=replace(EXPERTS, num_experts=experts))
    made = native_model(spec, random_weights(spec), 16, BEST, format="int8")
    made.tape.profile(True)
    run = PagedRun(made, groups_of(spec, 16))
    run.step({0: [5]})
    calls = {name: (read, operations) for name, _, _, read, operations in made.tape.costs()}
    one = 2 * 48 * 2 * EXPERT.intermediate_size
    assert calls["experts_gate_up"][1] == EXPERTS.router.top_k * one
    panels = 2 * 48  # rows of gate and up, padded to whole panels
    assert calls["experts_gate_up"][0] < EXPERTS.router.top_k * (panels * 64 + 48 * 40)
