"""The page, the Markdown and the comparison, from rows that are given."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headrace.bench.report import Report, Row, make_report
from headrace.bench.technique_report.compare import differences, render
from headrace.bench.technique_report.page import highlights, html, markdown, tables
from headrace.bench.technique_report.plots import draw
from headrace.bench.technique_report.sections import SECTION, SECTIONS
from headrace.cli import main
from headrace.errors import ConfigError

ROOFLINE = {
    "read_bytes_per_s": {"best": 3e10}, "read_one_thread_bytes_per_s": {"best": 2e10},
    "peak_operations_per_s": {"bf16": {"best": 4e11}},
}  # fmt: skip


def way(name: str, against: str, rate: float, **values: float) -> Row:
    labels = {SECTION: "techniques", "technique": name, "against": against, "change": f"<{name}>"}
    return Row(labels, {"output_tokens_per_s": rate, **values})


def a_report(factor: float = 1.0) -> Report:
    step = {"bytes_per_s": 1e10, "operations_per_s": 2e10, "ttft_p50_s": 0.01, "limit_tokens_per_s": 900.0}
    rows = [
        way("no KV cache", "", 10 * factor),
        way("KV cache", "no KV cache", 100 * factor, gain=10.0, predicted_tokens_per_s=110.0),
        Row({SECTION: "chunking", "prompts": "whole prompts"}, {"itl_p50_s": 0.001, "itl_p99_s": 0.2}),
        Row({SECTION: "batch", "batch": 1}, {**step, "decode_tokens_per_s": 50.0 * factor}),
        Row({SECTION: "batch", "batch": 8}, {**step, "decode_tokens_per_s": 300.0 * factor}),
        Row({SECTION: "prefill", "prompt": 128}, {**step, "prefill_tokens_per_s": 5000.0}),
        Row({SECTION: "attention", "tokens": 512, "scores": "tiled"}, {"seconds": 0.1, "peak_bytes": 1e6}),
        Row({SECTION: "attention", "tokens": 512, "scores": "materialised"}, {"peak_bytes": 1e9}),
        Row({SECTION: "prefix", "prompt": 128, "prefix": "computed"}, {"ttft_p50_s": 0.02, "speedup": 1.0}),
        Row({SECTION: "prefix", "prompt": 128, "prefix": "prefix hit"}, {"ttft_p50_s": 0.004, "speedup": 5.0}),
        Row({SECTION: "quality", "format": "int8"}, {"kl": 0.001, "perplexity": 5.0, "perplexity_increase": -0.001}),
        Row({SECTION: "kv_memory", "attention": "MHA", "model": "one"}, {"token_bytes": 1024.0, "kv_4k_bytes": 4e6}),
    ]  # fmt: skip
    return make_report("report", rows, config={"model": "a <model>"}, roofline=ROOFLINE, notes=["a & note"])


class Seen(HTMLParser):
    """Ids, and what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        for name in ("src", "href", "xlink:href"):
            target = given.get(name)
            if tag == "script" or (target and not target.startswith("#")):
                self.loaded.append(f"{tag} {target}")


@pytest.mark.long
def test_the_page_has_every_section_and_loads_nothing() -> None:
    text = html(a_report())
    seen = Seen()
    seen.feed(text)
    assert set(SECTIONS) <= set(seen.ids)
    assert len(seen.ids) == len(set(seen.ids))
    assert seen.loaded == []
    assert "a &lt;model&gt;" in text and "<model>" not in text and "&lt;KV cache&gt;" in text
    assert text.count("<svg") == sum(section.drawn for section in SECTIONS.values())


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=() if key == "prefix" else pytest.mark.long)
        for key, section in SECTIONS.items()
        if section.drawn
    ],
)
def test_pictures_take_the_colour_of_the_page(key: str) -> None:
    picture = draw(a_report(), key)
    ET.fromstring(picture)
    assert "currentColor" in picture and "#010203" not in picture
    assert picture == draw(a_report(), key)


@pytest.mark.long
def test_markdown_has_the_same_tables_and_its_pictures(tmp_path: Path) -> None:
    text = markdown(a_report(), tmp_path, "images/")
    for section in SECTIONS.values():
        assert f"## {section.title}" in text
        assert (
            (tmp_path / f"{section.key}.svg").exists()
            == section.drawn
            == (f"(images/{section.key}.svg)" in text)
        )
    assert "| KV cache | no KV cache | <KV cache> |" in text
    widths = {
        len(line.split("|"))
        for line in text.splitlines()
        if line.startswith("| batch") or line.startswith("| 8")
    }
    assert len(widths) == 1


def test_a_report_without_predictions_or_roofline_is_still_a_page() -> None:
    report = replace(a_report(), roofline=None, complete=False)
    assert "interrupted" in markdown(replace(report, rows=report.rows[:2]), None, "")
    assert draw(report, "roofline") == ""
    assert "no KV cache" in tables(report)


def test_highlights_are_of_the_best() -> None:
    found = dict(highlights(a_report()))
    assert "KV cache over no KV cache" in found["10 x"]
    assert found["10%"].startswith("median error of the 1 predicted")


def test_comparison() -> None:
    before, after = a_report(), a_report(2.0)
    ratios = {(one.section, one.row, one.metric): one.ratio for one in differences(before, after)}
    assert ratios[("batch", "8", "decode_tokens_per_s")] == 2.0
    assert ratios[("prefill", "128", "prefill_tokens_per_s")] == 1.0
    assert "2.00 x" in render(before, after)
    with pytest.raises(ConfigError, match="no row in common"):
        differences(before, replace(after, rows=()))


def test_comparison_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, factor in zip(paths, (1.0, 2.0), strict=True):
        a_report(factor).write(str(path))
    assert main(["bench", "report", "--compare", *map(str, paths)]) == 0
    assert "2.00 x" in capsys.readouterr().out
    other = replace(a_report(), kind="latency")
    other.write(str(paths[0]))
    assert main(["bench", "report", "--compare", *map(str, paths)]) != 0
    assert "headrace bench latency" in capsys.readouterr().err
    for damaged in ("{", "[" * 100_000):
        paths[0].write_text(damaged)
        assert main(["bench", "report", "--compare", *map(str, paths)]) != 0
        assert "not JSON" in capsys.readouterr().err
    paths[0].write_text("{}")
    assert main(["bench", "report", "--compare", *map(str, paths)]) != 0
    assert "a.json: this is no headrace.bench report" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--price-per-hour", "-1"], "--price-per-hour must be above 0"),
        (["--output", "/dev/null/report"], "cannot be written"),
        (["--data", "/nowhere.txt"], "cannot read /nowhere.txt"),
        (["--drafter", "nope"], "there is no model 'nope'"),
        (["--drafter", "ngram,ngram"], "ngram"),
    ],
)
def test_bad_input_is_refused_before_the_work(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "headrace.bench.model.subject.load_subject", lambda config: pytest.fail("the work began")
    )
    assert main(["bench", "report", *arguments]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.long
def test_the_whole_report_of_the_bundled_model(tmp_path: Path) -> None:
    assert main(["bench", "report", "--quick", "-o", str(tmp_path)]) == 0
    report = Report.from_json(json.loads((tmp_path / "report.json").read_text()))
    assert {row.labels[SECTION] for row in report.rows} | {"roofline"} == set(SECTIONS)
    assert html(report) == (tmp_path / "report.html").read_text()
