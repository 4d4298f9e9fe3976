"""The benchmark of step time budgets runs, and its two loads send what they say."""

from __future__ import annotations

import pytest

from benchmarks import step_budget


def test_a_closed_loop_and_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["shape:tiny", "--requests", "5", "--prompt", "40", "--output", "6"]
    assert step_budget.main([*common, "--streams", "2"]) == 0
    assert step_budget.main([*common, "--rate", "500", "--budgets", "0.01"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == ["off", "auto", "0.01"]
    assert all("tok/s" in line and "x the median" in line for line in lines)
