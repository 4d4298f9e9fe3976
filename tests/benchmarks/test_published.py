"""Predictions beside published figures: what is in the file, and that predictions are near."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.published import DECODE, FIRST, WHOLE, Checked, check, main, read_figures
from headrace.plan.hardware_table import find_hardware

SOURCES, FIGURES = read_figures()


def test_every_figure_has_a_source_that_can_be_looked_up() -> None:
    assert len(FIGURES) >= 12 and {one.kind for one in FIGURES} == {DECODE, FIRST, WHOLE}
    assert {one.source for one in FIGURES} == set(SOURCES)
    for source in SOURCES.values():
        assert source["url"].startswith("https://github.com/") and source["setup"] and source["title"]
    assert {one.hardware for one in FIGURES} == {"a100-80g", "h100"}
    for one in FIGURES:
        assert one.published > 0 and find_hardware(one.hardware).most >= one.tp
    assert len(set(FIGURES)) == len(FIGURES)


def test_predictions_of_one_device_in_16_bits_are_near() -> None:
    chosen = [
        one for one in FIGURES
        if one.tp == 1 and one.model == "llama-2-7b" and one.hardware == "a100-80g" and one.format == "stored"
    ]  # fmt: skip
    ratios = [one.ratio for one in check(chosen)]
    assert len(ratios) >= 12 and statistics.median(ratios) == pytest.approx(1.0, abs=0.15)


@pytest.mark.long
def test_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    checked = check(FIGURES)
    assert statistics.median(abs(one.ratio - 1) for one in checked) < 0.2
    assert all(0.3 < one.ratio < 3 for one in checked)
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert len([line for line in shown.splitlines() if "a100-80g" in line or " h100 " in line]) == len(
        FIGURES
    )
    assert isinstance(checked[0], Checked) and shown.count("https://") == len(SOURCES)
