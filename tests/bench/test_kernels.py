"""`headrace bench kernels`: every op is measured at the shapes it claims, and its figures fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.native import kernels as subject
from headrace.bench.native.roofline import measure_roofline
from headrace.bench.native.sampling import SETTINGS, SPREADS
from headrace.bench.native.tape_step import BLOCK_SIZE, TapeStep
from headrace.bench.report import Report
from headrace.cli import main
from headrace.models.families import read_spec
from headrace.models.source import resolve_model
from tests import needs
from tests.instruction_sets import parameters

needs.native()

SMALL = ["--repeats", "1", "--num-threads", "1", "-m", "shape:tiny"]


@pytest.fixture(autouse=True)
def _few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies of the weights are enough to see that it works, and 1 ms to have run."""
    monkeypatch.setattr(subject, "buffer_bytes", lambda cache, available: 1 << 14)
    monkeypatch.setattr(subject, "LEAST_SECONDS", 0.001)


def bench(path: Path, *words: str) -> Report:
    assert main(["bench", "kernels", *SMALL, *words, "--json", str(path)]) == 0
    return Report.from_json(json.loads(path.read_text(encoding="utf-8")))


def test_every_op_and_format(tmp_path: Path) -> None:
    report = bench(
        tmp_path / "out.json", "--rows", "1", "5", "70", "--context", "40",
        "--formats", "f32", "bf16", "int8", "int4", "int4-g32-asym-a16", "q5_1",
    )  # fmt: skip
    seen = {(row.labels["op"], row.labels["format"], row.labels["rows"]) for row in report.rows}
    for product in ("qkv", "out", "gate_up", "down"):
        for name in ("f32", "bf16", "int8", "int4", "int4-g32-asym-a16", "q5_1"):
            assert {(product, name, rows) for rows in (1, 5, 70)} <= seen
    assert ("head", "bf16", 5) in seen and (
        "head",
        "bf16",
        70,
    ) not in seen  # no step samples from a whole prompt
    assert {("attention", kind, 70) for kind in ("f32", "bf16", "int8")} <= seen
    assert {("encode", kind, 1) for kind in ("f32", "bf16", "int8")} <= seen
    assert {("sample", f"{logits} T=0.7", 5) for logits in ("flat", "spread", "peaked")} <= seen
    for row in report.rows:
        assert row.values["seconds"] > 0 and row.values["bytes_per_s"] > 0
        assert ("fraction" in row.values) == (row.labels["op"] != "encode")


def test_rows_of_a_prompt_after_its_first_tokens(tmp_path: Path) -> None:
    """70 rows of 4 heads of 16 features see 31 to 100 keys each."""
    words = ("--ops", "attention", "--formats", "bf16", "--rows", "70", "--computed", "30")
    (row,) = bench(tmp_path / "x", *words).rows
    assert row.labels["context"] == 100
    pairs = sum(range(31, 101))
    assert row.values["operations_per_s"] * row.values["seconds"] == pytest.approx(4 * 4 * 16 * pairs)


def test_rates_are_work_over_time(tmp_path: Path) -> None:
    """down of the shape tiny is 64 x 128: 8 rows are 2 * 8 * 64 * 128 operations on 16 KiB of bf16 weights."""
    (row,) = [
        row
        for row in bench(tmp_path / "x", "--ops", "linear", "--formats", "bf16", "--rows", "8").rows
        if row.labels["op"] == "down"
    ]
    seconds = row.values["seconds"]
    assert row.labels["shape"] == "64x128"
    assert row.values["operations_per_s"] * seconds == pytest.approx(2 * 8 * 64 * 128)
    assert row.values["bytes_per_s"] * seconds == pytest.approx(64 * 128 * 2)
    roofline = measure_roofline(None, 1)
    assert roofline is not None
    memory = 64 * 128 * 2 / max(roofline.read.best, roofline.read_one.best)
    compute = 2 * 8 * 64 * 128 / roofline.peaks["bf16"].best
    assert row.values["fraction"] == pytest.approx(max(memory, compute) / seconds)
    assert row.labels["bound"] == ("memory" if memory >= compute else "compute")


@pytest.mark.parametrize("name", parameters())
def test_every_instruction_set(name: str, tmp_path: Path) -> None:
    report = bench(
        tmp_path / "x", "--instruction-sets", name, "--formats", "int4", "--rows", "2", "--context", "20"
    )
    assert {row.labels["kernels"] for row in report.rows} == {name}
    assert len([row for row in report.rows if row.labels["op"] != "sample"]) == 7
    assert len([row for row in report.rows if row.labels["op"] == "sample"]) == len(SPREADS) * len(SETTINGS)


def test_products_are_those_of_the_model() -> None:
    source = resolve_model("shape:tinyllama-1.1b")
    found = {one.name: (one.rows, one.cols) for one in subject.products_of(read_spec(source.config, {}))}
    assert found == {
        "qkv": (2560, 2048), "out": (2048, 2048), "gate_up": (11264, 2048), "down": (2048, 5632),
        "head": (32000, 2048),
    }  # fmt: skip


def test_steps_give_every_sequence_blocks_of_its_own() -> None:
    step = TapeStep.of([1, 3], [BLOCK_SIZE, 5])
    ids, positions, cu_q, kv_lens = step.arrays
    tables, dropped, slots = step.tables
    assert (step.tokens, step.seqs, step.num_blocks) == (4, 2, 4) and len(ids) == 4
    assert positions.tolist() == [BLOCK_SIZE, 5, 6, 7]
    assert cu_q.tolist() == [0, 1, 4] and kv_lens.tolist() == [BLOCK_SIZE + 1, 8]
    assert tables.tolist() == [[0, 1], [2, 3]] and dropped.tolist() == [0, 0]
    assert slots.tolist() == [BLOCK_SIZE, 2 * BLOCK_SIZE + 5, 2 * BLOCK_SIZE + 6, 2 * BLOCK_SIZE + 7]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--instruction-sets", "none"], "no kernels 'none' here"),
        (["--formats", "int3"], "quantization 'int3'"),
        (["--rows", "0"], "--rows must be at least 1"),
        (["-m", "shape:none"], "no shape"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "kernels", *SMALL, *words]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("headrace: error: ") and said in shown and shown.count("\n") == 1
