"""Methods and bits side by side: what a variant means, and the line of the best ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.quality.quantization import VARIANTS, best_of, command_words
from headrace.bench.quality.quantization_page import BEGIN, END, check_page, write_page
from headrace.bench.report import Report, make_report, row_of_runs
from headrace.cli import main
from headrace.errors import ConfigError


def test_variants_are_options_of_the_command() -> None:
    assert command_words("gptq") == ["--method", "gptq"]
    assert command_words("gptq:3:32") == ["--method", "gptq", "--bits", "3", "--group-size", "32"]
    assert command_words("gguf:Q4_K_M:rtn") == ["--format", "gguf:Q4_K_M", "--method", "rtn"]
    assert command_words("auto:4.25") == ["--method", "auto", "--bits-per-weight", "4.25"]
    assert command_words("gguf:auto:4.5")[2:] == ["--format", "gguf:auto", "--bits-per-weight", "4.5"]
    assert len(VARIANTS) == 15
    assert all(command_words(one) for one in VARIANTS)
    for wrong in ("", "gguf", "auto", "gptq:4:32:x", "rtn:", "gguf:a:b:c"):
        with pytest.raises(ConfigError, match="is not a variant"):
            command_words(wrong)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--variants", "rtn:4", "rtn:5"], "variant 'rtn:5': argument --bits: invalid choice: 5"),
        (["--variants", "awq:4:7"], "variant 'awq:4:7': the group size must be 16 to 256"),
        (["--variants", "gguf:Q9"], "variant 'gguf:Q9': there is no GGUF type"),
        (["--variants", "gptq:4:auto"], "--group-size must be 16 to 256"),
        (["--variants", "rtn:4", "-m", "shape:tiny"], "shape:tiny has random weights"),
        (
            ["--variants", "rtn:4", "--eval-data", "/dev/null"],
            "/dev/null is read for each variant: give a file",
        ),
        (
            ["--variants", "rtn:4", "--eval-data", "data.txt", "-m", "shape:tiny"],
            "shape:tiny has random weights",
        ),
    ],
)
def test_what_the_command_would_refuse_is_refused_before_anything_is_measured(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "quantization", *words]) == 1
    printed = capsys.readouterr()
    assert said in " ".join(printed.err.split()) and not printed.out


def test_the_line_joins_what_no_other_variant_beats() -> None:
    points = [(4.5, 0.001), (4.5, 0.002), (3.5, 0.01), (5.0, 0.0015), (8.0, 0.0001)]
    assert best_of(points) == [(3.5, 0.01), (4.5, 0.001), (8.0, 0.0001)]


@pytest.mark.long
def test_each_seed_makes_a_variant_of_its_own_and_medians_are_shown(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    words = "bench quantization -m tale --variants rtn:3:64 gptq:3:64 --calibration-seeds 3 5 8 --samples 4"
    assert main([*words.split(), "--eval-tokens", "300", "--num-threads", "1", "--json", str(found)]) == 0
    report = Report.from_json(json.loads(found.read_text()))
    plain, rtn, gptq = report.rows
    assert plain.labels == {"variant": "as it is"} and report.config["calibration_seeds"] == [3, 5, 8]
    assert len(rtn.samples["kl"]) == 1  # the nearest codes need no texts
    assert len(set(gptq.samples["kl"])) == 3
    assert gptq.values["kl"] == sorted(gptq.samples["kl"])[1] < rtn.values["kl"]
    assert gptq.values["increase_error"] > 0 and "decode_1_tokens_per_s" in gptq.values


def test_the_table_goes_into_its_place_in_a_page(tmp_path: Path) -> None:
    rows = [
        row_of_runs({"variant": "as it is"}, [{"perplexity": 1.65}]),
        row_of_runs({"variant": "gptq:4"}, [{"perplexity": 1.66, "kl": 5e-4}]),
    ]
    report = make_report("quantization", rows, config={"model": "tale", "samples": 64})
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nMore.\n")
    for _ in range(2):
        check_page(page)
        write_page(page, report, ("perplexity", "kl"), str(tmp_path / "docs" / "images" / "kl.svg"))
        text = page.read_text()
        assert text.startswith("# Title\n\n<!--") and text.endswith("-->\n\nMore.\n") and "old" not in text
        assert "| `as it is` | 1.6500 |  |" in text and "| `gptq:4` | 1.6600 | 0.0005 |" in text
        assert "](images/kl.svg)" in text and "`tale`, 64 calibration texts, " in text
    fresh = tmp_path / "new.md"
    check_page(fresh)
    write_page(fresh, report, ("perplexity", "kl"), None)
    assert fresh.read_text().startswith(BEGIN) and "![" not in fresh.read_text()
    page.write_text("# No place\n")
    with pytest.raises(ConfigError, match="has no place for the table"):
        check_page(page)
