"""The benchmark of memory: its arithmetic, and one row really measured."""

from __future__ import annotations

import json

import pytest

from benchmarks.memory import Row, main, report
from headrace.plan.units import MIB


def test_errors_are_those_of_the_plan_and_of_the_process() -> None:
    row = Row("m", "int4", 100 * MIB, 60 * MIB, 30 * MIB, 10 * MIB, 30 * MIB, 62 * MIB, 125 * MIB)
    assert row.planned == 100 * MIB
    assert row.error == pytest.approx(-0.2) and row.process_error == pytest.approx(200 / 225 - 1)
    shown = report([row])
    assert "to the byte" in shown and "-20.0%" in shown and "Largest error of the plan alone 20.0%" in shown
    other = Row("m", "int4", 100 * MIB, 60 * MIB, 30 * MIB, 10 * MIB, 30 * MIB + 1, 62 * MIB, 125 * MIB)
    assert "+1 B" in report([other])


@pytest.mark.long
def test_a_small_model_is_within_three_percent_of_its_process(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--models", "shape:smollm2-135m", "--formats", "int4", "--json"]) == 0
    row = Row(**json.loads(capfd.readouterr().out))
    assert row.pools == row.kv
    assert abs(row.process_error) < 0.03 and abs(row.error) < 0.05
