"""The reference of mixtures of experts, against plain loops over tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from headrace.ops import reference
from headrace.ops.reference.dense import gate

OPTIONS: dict[str, Any] = {
    "top_k": 3, "scores": "softmax", "normalize": False, "scale": 1.0, "groups": 1, "top_groups": 1,
    "group_score": "max",
}  # fmt: skip
ROUTERS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax-normalized": {"normalize": True},
    "softmax-of-the-chosen": {"scores": "softmax_chosen"},
    "sigmoid": {"scores": "sigmoid", "normalize": True, "scale": 2.5},
    "groups-by-their-largest": {"groups": 4, "top_groups": 2},
    "groups-by-their-two-largest": {
        "scores": "sigmoid", "groups": 4, "top_groups": 2, "group_score": "top2", "normalize": True,
    },
    "one-expert": {"top_k": 1},
    "every-expert": {"top_k": 12},
}  # fmt: skip


def chosen(logits: list[float], bias: list[float], options: dict[str, Any]) -> tuple[list[int], list[float]]:
    """A token's experts and weights, in double precision and without tensors."""
    experts = range(len(logits))
    if options["scores"] == "sigmoid":
        scores = [1 / (1 + math.exp(-x)) for x in logits]
    elif options["scores"] == "softmax":
        total = sum(math.exp(x) for x in logits)
        scores = [math.exp(x) / total for x in logits]
    else:
        scores = logits
    ranked = [score + extra for score, extra in zip(scores, bias, strict=True)]
    size = len(logits) // options["groups"]
    counted = 1 if options["group_score"] == "max" else 2
    totals = [sum(sorted(ranked[g * size : (g + 1) * size])[-counted:]) for g in range(options["groups"])]
    best = sorted(range(len(totals)), key=lambda g: -totals[g])[: options["top_groups"]]
    allowed = [e for e in experts if e // size in best]
    found = sorted(allowed, key=lambda e: -ranked[e])[: options["top_k"]]
    weights = [scores[e] for e in found]
    if options["scores"] == "softmax_chosen":
        weights = [math.exp(w) for w in weights]
    if options["normalize"] or options["scores"] == "softmax_chosen":
        weights = [w / sum(weights) for w in weights]
    return found, [w * options["scale"] for w in weights]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ROUTERS)
def test_route_chooses_as_a_loop_does(name: str, biased: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(40, 12, generator=generator) * 2
    bias = torch.randn(12, generator=generator) * 0.1 if biased else None
    options = {**OPTIONS, **ROUTERS[name]}
    scales = torch.rand(12, generator=generator) + 0.5 if biased else torch.ones(12)
    experts, weights = reference.route(logits, bias, scales if biased else None, **options)
    for row, found, values in zip(logits.tolist(), experts.tolist(), weights.tolist(), strict=True):
        expected = chosen(row, [0.0] * 12 if bias is None else bias.tolist(), options)
        assert found == expected[0]
        scaled = [weight * float(scales[expert]) for expert, weight in zip(*expected, strict=True)]
        assert values == pytest.approx(scaled, abs=1e-6)


def test_equal_scores_are_taken_in_the_order_of_the_experts() -> None:
    experts, weights = reference.route(torch.zeros(2, 12), None, **OPTIONS)
    assert experts.tolist() == [[0, 1, 2]] * 2
    assert weights.tolist() == [pytest.approx([1 / 12] * 3)] * 2


@pytest.mark.parametrize("activation", [None, "silu", "swiglu_oai"])
def test_every_row_meets_its_experts_matrix(activation: str | None) -> None:
    generator = torch.Generator().manual_seed(2)
    x, weight = torch.randn(9, 10, generator=generator), torch.randn(4, 14, 10, generator=generator)
    bias = torch.randn(4, 14, generator=generator)
    counts = [2, 0, 6, 1]
    out = reference.expert_linear(x, counts, weight, bias, activation)
    owners = [expert for expert, count in enumerate(counts) for _ in range(count)]
    for row, expert in enumerate(owners):
        product = weight[expert] @ x[row] + bias[expert]
        want = product if activation is None else gate(product[None], activation)[0]
        assert torch.allclose(out[row], want, atol=1e-5)


def test_the_gate_of_gpt_oss_is_limited() -> None:
    gates, ups = torch.tensor([-9.0, 0.5, 9.0]), torch.tensor([-9.0, 2.0, 9.0])
    want = [
        (max(-7, min(up, 7)) + 1) * min(g, 7) / (1 + math.exp(-1.702 * min(g, 7)))
        for g, up in zip(gates.tolist(), ups.tolist(), strict=True)
    ]
    assert gate(torch.cat((gates, ups))[None], "swiglu_oai")[0].tolist() == pytest.approx(want)
