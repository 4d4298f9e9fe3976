"""The one form of every benchmark's result: JSON there and back, the table, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.metrics import METRICS, show_seconds
from headrace.bench.report import Report, Row, make_report, row_of_runs
from headrace.cli.bench.command import KINDS
from headrace.errors import ConfigError


def a_report(**changes: Any) -> Report:
    rows = (
        row_of_runs(
            {"model": "tale", "batch": 1}, [{"decode_tokens_per_s": n} for n in (90.0, 110.0, 100.0)]
        ),
        Row({"model": "tale", "batch": 32}, {"decode_tokens_per_s": 1234.0, "fraction": 0.625}),
    )
    options: dict[str, Any] = {"config": {"model": "tale"}, "roofline": {"threads": 2}, "notes": ("a note",)}
    return make_report("throughput", rows, **{**options, **changes})


def test_json_there_and_back(tmp_path: Path) -> None:
    report = a_report()
    report.write(str(tmp_path / "result.json"))
    data = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert Report.from_json(data) == report
    assert data["schema"] == "headrace.bench" and data["version"] == 1
    assert data["rows"][0]["values"] == {"decode_tokens_per_s": 100.0}
    assert data["rows"][0]["samples"] == {"decode_tokens_per_s": [90.0, 110.0, 100.0]}
    assert data["versions"]["headrace"] and data["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), "other", "no headrace.bench report"),
        (("version",), 2, "no headrace.bench report of version 1"),
        (("kind",), 3, "kind must be of type str"),
        (("rows",), {}, "rows must be of type list"),
        (("complete",), "yes", "complete must be of type bool"),
        (("machine", "cores"), True, "cores must be of type int"),
        (("rows", 0, "labels", "batch"), None, "label 'batch'"),
        (("rows", 0, "values", "decode_tokens_per_s"), "fast", "decode_tokens_per_s must be a number"),
        (("rows", 0, "values", "made_up"), 1.0, "no metric 'made_up'"),
        (("rows", 0, "samples", "fraction"), 1.0, "fraction must be a list"),
        (("notes",), [1], "notes must be a list of texts"),
    ],
)
def test_a_file_that_is_not_a_report_is_refused(path: tuple[Any, ...], value: object, said: str) -> None:
    data: Any = a_report().to_json()
    at = data
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(ConfigError, match=said):
        Report.from_json(data)


def test_the_table_has_labels_then_metrics_in_their_order() -> None:
    head, *_rest = a_report().table(title=False).splitlines()
    assert head.split() == ["model", "batch", "decode", "tok/s", "of", "roofline"]
    text = a_report(complete=False).table()
    assert "1,234" in text and "62%" in text and "a note" in text and "interrupted" in text
    (missing,) = [line for line in text.splitlines() if line.split()[:2] == ["tale", "1"]]
    assert missing.split()[-1] == "-"


def test_a_file_that_cannot_be_written_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        a_report().write(str(tmp_path / "no" / "such" / "folder.json"))


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.345, "2.35 s"), (0.0456, "45.6 ms"), (789e-6, "789 µs"), (12e-9, "0.01 µs")]
)
def test_seconds_are_shown_in_the_unit_that_suits(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


def test_every_metric_is_described() -> None:
    for metric in METRICS.values():
        assert metric.meaning and metric.heading and metric.show(1.5)


def test_the_page_lists_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for name, metric in METRICS.items():
        assert f"| `{name}` | {metric.unit} | {metric.meaning} |" in page
    for kind in KINDS:
        assert f"| `{kind}` |" in page
