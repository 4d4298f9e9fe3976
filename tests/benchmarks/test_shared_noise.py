"""Shared Gumbel noise makes a close draft agree with its target far more often than a shared uniform number does."""

from __future__ import annotations

import numpy as np

from benchmarks.shared_noise import agreement


def test_a_close_draft_agrees_more_often_under_shared_noise() -> None:
    random = np.random.default_rng(1)
    target = random.standard_normal((300, 400)).astype(np.float32) * 2
    draft = target + random.standard_normal(target.shape).astype(np.float32) * np.float32(0.25)
    got = agreement(target, draft, seed=4, temperature=0.8)
    assert got.positions == 300
    assert got.inverted + 0.2 < got.shared_noise <= got.bound + 0.05
    same = agreement(target, target, seed=4, temperature=0.8)
    assert (same.shared_noise, same.inverted, round(same.bound, 9)) == (1.0, 1.0, 1.0)
