"""The table of benchmarks.speculation."""

from __future__ import annotations

import pytest

from benchmarks.speculation.__main__ import Found, _cells, _same_answers


def answer(seconds: float, steps: int, drafted: int = 0, accepted: int = 0) -> dict[str, object]:
    return {"tokens": [1] * 101, "seconds": seconds, "steps": steps, "drafted": drafted, "accepted": accepted}


ROUND: Found = {
    "none": [answer(1.0, 100), answer(3.0, 100)],
    "look-up": [answer(0.5, 40, 80, 60), answer(1.5, 60, 120, 40)],
}


def test_a_row_has_the_medians_of_rounds_and_the_counts_of_all() -> None:
    assert _cells([ROUND], "none") == "50 | 1.00 |  | 1.00"
    assert _cells([ROUND], "look-up") == "100 | 2.00 | 50% | 2.00"
    slow: Found = {"none": ROUND["none"], "look-up": [answer(4.0, 100, 0, 0)] * 2}
    assert _cells([ROUND, slow, slow], "look-up") == "25 | 0.50 | 50% | 1.20"


def test_drafts_that_change_a_token_are_noticed() -> None:
    _same_answers("stories", [ROUND])
    other = {**ROUND, "look-up": [ROUND["look-up"][0], {**ROUND["look-up"][1], "tokens": [2]}]}
    with pytest.raises(AssertionError, match="look-up"):
        _same_answers("stories", [other])
