"""Rotations against complex arithmetic, and their exactness far along a stream."""

from __future__ import annotations

import cmath
import math

import pytest
import torch

from headrace.ops import reference


def _frequencies(dim: int, theta: float = 10_000.0) -> torch.Tensor:
    return torch.tensor([theta ** (-i / dim) for i in range(0, dim, 2)], dtype=torch.float64)


@pytest.mark.parametrize("rotated", [8, 4])
def test_rotates_pairs_as_complex_numbers(rotated: int) -> None:
    heads, dim = 2, 8
    x = torch.randn(3, heads, dim, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([0, 5, 77])
    frequencies = _frequencies(rotated)
    got = reference.apply_rope(x, *reference.rope_tables(positions, frequencies, 1.0))
    half = rotated // 2
    for t, position in enumerate(positions.tolist()):
        for h in range(heads):
            for c in range(half):
                pair = complex(x[t, h, c], x[t, h, c + half]) * cmath.exp(
                    1j * position * float(frequencies[c])
                )
                assert float(got[t, h, c]) == pytest.approx(pair.real, abs=1e-5)
                assert float(got[t, h, c + half]) == pytest.approx(pair.imag, abs=1e-5)
    assert torch.equal(got[..., rotated:], x[..., rotated:])


def test_attention_factor_scales_both_tables() -> None:
    positions, frequencies = torch.tensor([3]), _frequencies(8)
    cos, sin = reference.rope_tables(positions, frequencies, 1.0)
    scaled_cos, scaled_sin = reference.rope_tables(positions, frequencies, 1.5)
    torch.testing.assert_close(scaled_cos, cos * 1.5)
    torch.testing.assert_close(scaled_sin, sin * 1.5)


@pytest.mark.parametrize("position", [1_000_003, 50_000_017])
def test_angles_stay_exact_at_large_positions(position: int) -> None:
    frequencies = _frequencies(64)
    cos, sin = reference.rope_tables(torch.tensor([position]), frequencies, 1.0)
    for c, frequency in enumerate(frequencies.tolist()):
        assert float(cos[0, c]) == pytest.approx(math.cos(position * frequency), abs=1e-6)
        assert float(sin[0, c]) == pytest.approx(math.sin(position * frequency), abs=1e-6)


def test_logits_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    q, k = torch.randn(1, 1, 16, generator=generator), torch.randn(1, 1, 16, generator=generator)
    frequencies = _frequencies(16)

    def logit(query_at: int, key_at: int) -> float:
        turned = [
            reference.apply_rope(x, *reference.rope_tables(torch.tensor([at]), frequencies, 1.0))
            for x, at in ((q, query_at), (k, key_at))
        ]
        return float((turned[0] * turned[1]).sum())

    assert logit(1_000_040, 1_000_001) == pytest.approx(logit(39, 0), abs=1e-5)
