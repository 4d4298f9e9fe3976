"""`headrace bench profile`: every op of a step is there, and the parts add up to the whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.model.profile import OVERHEAD, STEP, OpCost, by_op
from headrace.bench.report import Report, Row
from headrace.cli import main

LAYERS = 2  # of the shape tiny
SMALL = ["--num-threads", "1", "-m", "shape:tiny"]


def bench(path: Path, *words: str) -> dict[object, dict[str, Row]]:
    """Rows by batch and op."""
    assert main(["bench", "profile", *SMALL, *words, "--json", str(path)]) == 0
    report = Report.from_json(json.loads(path.read_text(encoding="utf-8")))
    found: dict[object, dict[str, Row]] = {}
    for row in report.rows:
        found.setdefault(row.labels["batch"], {})[str(row.labels["op"])] = row
    return found


def test_the_parts_of_a_step_add_up(tmp_path: Path) -> None:
    batches = bench(
        tmp_path / "x", "--batch-sizes", "1", "3", "--input-len", "20", "--output-len", "9", "--repeats", "3"
    )
    assert set(batches) == {1, 3}
    for ops in batches.values():
        assert {"embed", "qkv", "rope", "attention", "gate_up", "down", "head", OVERHEAD, STEP} <= set(ops)
        whole = ops[STEP].values["seconds"]
        parts = [row for name, row in ops.items() if name != STEP]
        assert sum(row.values["seconds"] for row in parts) == pytest.approx(whole)
        assert sum(row.values["share"] for row in parts) == pytest.approx(1.0)
        assert 0 < ops[OVERHEAD].values["overhead_s"] < whole
        assert ops["qkv"].values["calls"] == LAYERS and ops["head"].values["calls"] == 1
        assert ops[STEP].values["fraction"] > 0 and len(ops[STEP].samples["seconds"]) == 8


def test_work_of_ops_is_that_of_their_shapes(tmp_path: Path) -> None:
    """head: 256 x 64; down: 64 x 128 in each layer; both once for each sequence."""
    ops = bench(tmp_path / "x", "--batch-sizes", "3", "--input-len", "4", "--output-len", "4")[3]
    assert ops["head"].values["operations"] == 3 * 2 * 256 * 64
    assert ops["down"].values["operations"] == 3 * 2 * 64 * 128 * LAYERS
    assert ops["down"].values["bytes"] >= 64 * 128 * LAYERS


def test_prefill_is_one_step_of_many_rows(tmp_path: Path) -> None:
    ops = bench(tmp_path / "x", "--prefill", "--input-len", "50", "--output-len", "2")[1]
    assert ops["qkv"].values["operations"] == 50 * 2 * 128 * 64 * LAYERS
    assert len(ops[STEP].samples["seconds"]) == 1


def test_torch_cannot_be_profiled(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "profile", *SMALL, "--ops-force", "torch"]) == 1
    assert "only native kernels can be profiled" in capsys.readouterr().err


def test_costs_are_added_up_over_layers() -> None:
    ops = by_op([("b", 0, 1.0, 10.0, 100.0), ("a", 0, 2.0, 0.0, 0.0), ("b", 1, 3.0, 30.0, 300.0)])
    assert list(ops) == ["b", "a"]
    assert ops["b"] == OpCost(calls=2, seconds=4.0, bytes=40.0, operations=400.0)


def test_overhead_has_every_part(tmp_path: Path) -> None:
    path = tmp_path / "x"
    words = ["--batch-sizes", "1", "2", "--sampling", "greedy", "--steps", "20", "--json", str(path)]
    assert main(["bench", "overhead", "--num-threads", "1", *words]) == 0
    report = Report.from_json(json.loads(path.read_text(encoding="utf-8")))
    assert [row.labels["part"] for row in report.rows] == [
        "plan", "pack", "sample", "commit", "output", "step"
    ] * 2  # fmt: skip
    assert all(row.values.get("seconds", 1.0) > 0 for row in report.rows)
    assert "repeats" not in report.config and report.config["steps"] == 20
