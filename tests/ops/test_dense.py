"""Embedding, projections, feed-forward and norm against plain arithmetic."""

from __future__ import annotations

import math

import pytest
import torch

from headrace.ops import reference


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def test_embedding_takes_rows(rng: torch.Generator) -> None:
    weight = torch.randn(9, 4, generator=rng)
    got = reference.embedding(torch.tensor([8, 0, 8]), weight)
    assert torch.equal(got, torch.stack([weight[8], weight[0], weight[8]]))


@pytest.mark.parametrize("bias", [False, True])
def test_linear_is_a_sum_of_products(rng: torch.Generator, bias: bool) -> None:
    x, weight = torch.randn(3, 5, generator=rng), torch.randn(4, 5, generator=rng)
    offset = torch.randn(4, generator=rng) if bias else None
    got = reference.linear(x, weight, offset)
    for t in range(3):
        for o in range(4):
            want = sum(float(x[t, i]) * float(weight[o, i]) for i in range(5))
            want += float(offset[o]) if offset is not None else 0.0
            assert float(got[t, o]) == pytest.approx(want, abs=1e-5)


def _silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def _gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def _gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("name", "activation"), [("silu", _silu), ("gelu", _gelu), ("gelu_tanh", _gelu_tanh)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_gated_linear(rng: torch.Generator, name: str, activation: object, bias: bool) -> None:
    hidden, wide = 4, 6
    x = torch.randn(3, hidden, generator=rng)
    gate, up = torch.randn(wide, hidden, generator=rng), torch.randn(wide, hidden, generator=rng)
    gate_bias, up_bias = (torch.randn(wide, generator=rng) * bias for _ in range(2))
    got = reference.gated_linear(
        x, torch.cat((gate, up)), name, torch.cat((gate_bias, up_bias)) if bias else None
    )
    want = (x @ gate.T + gate_bias).double().apply_(activation) * (x @ up.T + up_bias)
    torch.testing.assert_close(got, want.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(5, 8), (3, 2, 8)])
def test_rms_norm(rng: torch.Generator, shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape, generator=rng), torch.randn(8, generator=rng)
    got = reference.rms_norm(x, weight, 1e-3)
    for row, out in zip(x.view(-1, 8), got.view(-1, 8), strict=True):
        mean = sum(float(v) ** 2 for v in row) / 8
        want = torch.tensor(
            [float(v) / math.sqrt(mean + 1e-3) * float(w) for v, w in zip(row, weight, strict=True)]
        )
        torch.testing.assert_close(out, want, atol=1e-6, rtol=1e-5)


def test_rms_norm_divides_in_float32_and_rounds_before_the_weight(rng: torch.Generator) -> None:
    x = torch.randn(4, 64, generator=rng).mul(300).to(torch.float16)  # the squares overflow float16
    weight = torch.randn(64, generator=rng).to(torch.float16)
    got = reference.rms_norm(x, weight, 1e-6)
    wide = x.double()
    unit = (wide / wide.square().mean(-1, keepdim=True).add(1e-6).sqrt()).to(torch.float16)
    torch.testing.assert_close(got, unit * weight, atol=2e-3, rtol=2e-3)
    assert got.dtype == torch.float16
