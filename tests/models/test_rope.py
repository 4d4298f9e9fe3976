"""Rope scalings where transformers has no counterpart to compare with."""

from __future__ import annotations

import pytest

from headrace.models.rope import dynamic_theta, inverse_frequencies
from headrace.models.spec import RopeSpec

DYNAMIC = RopeSpec(theta=10_000.0, dim=64, kind="dynamic", factor=4.0, original_max_position=2048)


@pytest.mark.parametrize("max_model_len", [1, 500, 2048])
def test_dynamic_is_plain_up_to_the_original_length(max_model_len: int) -> None:
    plain = inverse_frequencies(RopeSpec(theta=10_000.0, dim=64), max_model_len)
    assert inverse_frequencies(DYNAMIC, max_model_len) == plain


def test_dynamic_base_grows_with_the_model_length() -> None:
    assert dynamic_theta(DYNAMIC, 4096) == pytest.approx(10_000.0 * (4 * 2 - 3) ** (64 / 62))
    assert dynamic_theta(DYNAMIC, 8192) > dynamic_theta(DYNAMIC, 4096) > 10_000.0


def test_llama3_keeps_short_waves_and_divides_long_ones() -> None:
    plain = RopeSpec(theta=500_000.0, dim=128)
    scaled = RopeSpec(
        theta=500_000.0,
        dim=128,
        kind="llama3",
        factor=8.0,
        original_max_position=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    before, _ = inverse_frequencies(plain, 1)
    after, factor = inverse_frequencies(scaled, 1)
    assert factor == 1.0
    assert after[0] == before[0] and after[-1] == before[-1] / 8
    ratios = [new / old for new, old in zip(after, before, strict=True)]
    assert ratios == sorted(ratios, reverse=True)
    assert any(1 / 8 < ratio < 1 for ratio in ratios)


def test_yarn_attention_factor() -> None:
    yarn = RopeSpec(theta=10_000.0, dim=64, kind="yarn", factor=1.0, original_max_position=2048)
    values, factor = inverse_frequencies(yarn, 1)
    assert factor == 1.0
    assert values == pytest.approx(inverse_frequencies(RopeSpec(theta=10_000.0, dim=64), 1)[0])
