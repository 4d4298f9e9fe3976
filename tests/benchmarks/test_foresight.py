"""`python -m benchmarks.foresight`: rows hold what was measured beside what was predicted, and their errors add up."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import needs

needs.native()

from benchmarks.foresight import __main__ as command  # noqa: E402
from benchmarks.foresight import rates, steps  # noqa: E402
from benchmarks.foresight.rows import Prediction, markdown, quantile, text  # noqa: E402
from headrace.bench.workload import fixed_lengths  # noqa: E402
from headrace.core.engine import Engine  # noqa: E402
from headrace.core.policy import SchedulerConfig  # noqa: E402
from headrace.core.types import KVGroupSpec  # noqa: E402
from headrace.plan.hardware_table import find_hardware  # noqa: E402
from headrace.sim.profile import Profile  # noqa: E402
from headrace.sim.simulate.executor import SimulatedExecutor, SyntheticTokens  # noqa: E402


def test_errors_are_shares_of_what_was_measured() -> None:
    rows = [Prediction("m", "bf16", f"{size}", "TPOT", 2.0, 2.0 * size, 1.0) for size in (0.9, 1.0, 1.1, 1.3)]
    assert [round(row.error, 3) for row in rows] == [-0.1, 0.0, 0.1, 0.3]
    assert {row.formula_error for row in rows} == {-0.5}
    for shown in (text(rows), markdown(rows)):
        assert "10.0%" in shown and "30.0%" in shown and "50.0%" in shown
    assert "| m | bf16 | 1.3 | TPOT | 2.00 s | 2.60 s | +30% |  | -50% |" in markdown(rows)
    assert quantile([3, 1, 2], 0.5) == 2 and quantile([3, 1, 2], 0.99) == 3


def test_the_virtual_clock_advances_by_steps_and_jumps_over_idle_time() -> None:
    """Each step takes 2 s, and applying its result 1 s."""
    engine = Engine(SchedulerConfig(4, 64, 32, 50), [KVGroupSpec("full", 32, 4)])
    executor = SimulatedExecutor(SyntheticTokens(50))
    first, other = fixed_lengths(2, prompt_tokens=5, output_tokens=3, vocab_size=50, seed=1)
    late = replace(other, at_s=100.0)
    load = rates.drive(engine, lambda plan: (executor.execute(plan), 2.0), [late, first], lambda: 1.0)
    assert load.ttft_s == (2.0, 2.0) and load.tpot_s == (3.0, 3.0)
    assert load.seconds == 109.0 and load.busy_s == 18.0 and load.tokens_per_s == pytest.approx(6 / 109)


def test_requests_come_at_their_rate() -> None:
    made = rates.requests(400, 8.0, 100, seed=3)
    assert made == rates.requests(400, 8.0, 100, seed=3)
    assert made[-1].at_s / len(made) == pytest.approx(1 / 8, rel=0.15)
    assert {one.at_s for one in rates.requests(5, None, 100, seed=3)} == {0.0}


def test_a_run_writes_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, rows = tmp_path / "profile.json", tmp_path / "rows.json"
    made = Profile.of_hardware(find_hardware("h100"))
    profile.write_text(json.dumps(made.to_json()), encoding="utf-8")
    monkeypatch.setattr(steps, "MOST_ROUNDS", 1)
    monkeypatch.setattr(rates, "RUNS", 2)
    monkeypatch.setattr(rates, "SHARES", (0.5,))
    words = [
        "--models", "tale", "--formats", "int8", "--batches", "2", "--prefill", "40", "--rates", "4",
        "--num-threads", "1", "--profile", str(profile), "--json", str(rows),
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["foresight", *words])
    command.main()
    written = json.loads(rows.read_text(encoding="utf-8"))
    figures = [(one["load"], one["figure"]) for one in written]
    assert figures[:2] == [("2 decode", "TPOT"), ("prompt of 40", "TTFT")]
    assert {figure for _, figure in figures[2:]} == {"TTFT", "TTFT p99", "TPOT", "TPOT p99", "tokens/s"}
    assert all(one["measured"] > 0 and one["predicted"] > 0 and one["formula"] > 0 for one in written)
    assert "median error" in capsys.readouterr().out
