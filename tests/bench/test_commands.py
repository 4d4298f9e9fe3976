"""Every kind of `headrace bench`, run for real on small work: the JSON is a report, and its figures fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.model.startup import launch
from headrace.bench.model.throughput import Mixed, closed_rows
from headrace.bench.report import Report
from headrace.cli import main
from headrace.cli.bench.command import KINDS
from headrace.errors import HeadraceError

SMALL = ["--repeats", "2", "--num-threads", "1"]
CLOSED = ["--batch-sizes", "1", "3", "--input-len", "9", "--output-len", "6"]
MIXED = ["--num-prompts", "4", "--mixed-input-len", "3", "20", "--mixed-output-len", "2", "6"]


def bench(*words: str, path: Path, model: str = "shape:tiny") -> Report:
    assert main(["bench", words[0], "-m", model, *SMALL, *words[1:], "--json", str(path)]) == 0
    return Report.from_json(json.loads(path.read_text(encoding="utf-8")))


def check_fractions(report: Report) -> None:
    """The fraction is the rate over the rate at the roofline, neither of them rounded."""
    assert report.roofline is not None
    read = max(report.roofline[name]["best"] for name in ("read_bytes_per_s", "read_one_thread_bytes_per_s"))
    for row in report.rows:
        assert 0 < row.values["fraction"] < 1.5
        assert row.values["bytes_per_s"] / read <= row.values["fraction"] * 1.001


def test_latency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(
        "latency", "--input-len", "9", "33", "--output-len", "6", path=tmp_path / "out.json", model="tale"
    )
    assert [dict(row.labels) for row in report.rows] == [
        {"prompt": 9, "batch": 1}, {"prompt": 33, "batch": 1}
    ]  # fmt: skip
    check_fractions(report)
    for row in report.rows:
        assert row.values["tpot_p50_s"] > 0 and row.values["itl_p50_s"] <= row.values["itl_p99_s"]
        assert len(row.samples["decode_tokens_per_s"]) == 2
    assert report.config["model"] == "tale" and report.config["input_len"] == [9, 33]
    shown = capsys.readouterr().out
    assert "TTFT p50" in shown and "of roofline" in shown and "roofline (" in shown


def test_throughput(tmp_path: Path) -> None:
    report = bench("throughput", *CLOSED, *MIXED, path=tmp_path / "out.json")
    one, three, mixed = report.rows
    assert [row.labels["traffic"] for row in report.rows] == ["closed", "closed", "mixed"]
    assert (one.labels["prompts"], mixed.labels["prompts"]) == ("9", "3-20")
    assert one.labels["requests"] == 1 and three.labels["requests"] == 3 and mixed.labels["requests"] == 4
    for row in (one, three):
        names = ("decode_tokens_per_s", "limit_tokens_per_s", "fraction")
        for rate, limit, fraction in zip(*(row.samples[name] for name in names), strict=True):
            assert rate == pytest.approx(limit * fraction)
    assert mixed.values["total_tokens_per_s"] > mixed.values["output_tokens_per_s"] > 0
    assert 1 <= mixed.values["mean_batch"] <= 4
    check_fractions(report)


def test_closed_batch_throughput(tmp_path: Path) -> None:
    report = bench("throughput", *CLOSED, "--num-prompts", "0", path=tmp_path / "out.json")
    assert [row.labels["traffic"] for row in report.rows] == ["closed", "closed"]


def test_default_mixed_lengths_fit_the_model(tmp_path: Path) -> None:
    """The shape tiny has 512 positions."""
    words = ["--batch-sizes", "--num-prompts", "2", "--max-model-len", "64"]
    (row,) = bench("throughput", *words, path=tmp_path / "out.json").rows
    assert (row.labels["prompts"], row.labels["outputs"]) == ("32-48", "16-16")
    assert Mixed(64).within(1024) == Mixed(64, (32, 768), (16, 256))
    assert Mixed(64).within(4096) == Mixed(64)


def test_prefill_in_chunks(tmp_path: Path) -> None:
    report = bench("prefill", "--input-len", "64", "--chunk-sizes", "64", "24", path=tmp_path / "out.json")
    assert [row.labels["chunk"] for row in report.rows] == [64, 24]
    check_fractions(report)
    for row in report.rows:
        for rate, seconds in zip(row.samples["prefill_tokens_per_s"], row.samples["seconds"], strict=True):
            assert rate * seconds == pytest.approx(64)


@pytest.mark.long
def test_startup(tmp_path: Path) -> None:
    report = bench("startup", "--input-len", "5", path=tmp_path / "out.json")
    (row,) = report.rows
    values = row.values
    phases = ("launch_s", "import_s", "config_s", "load_s", "first_token_s")
    for run in range(2):
        parts = sum(row.samples[name][run] for name in phases)
        assert row.samples["startup_s"][run] == pytest.approx(parts, rel=1e-6)
    assert all(values[name] > 0 for name in phases) and values["peak_rss_bytes"] > 10e6
    assert report.roofline is None


def test_a_failed_launch_reports_the_reason() -> None:
    with pytest.raises(HeadraceError, match=r"the launched process failed: .*there is no shape 'none'"):
        launch({"model": "shape:none"}, input_len=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["latency", "--batch-sizes", "0"], "--batch-sizes must be at least 1"),
        (["latency", "--repeats", "0"], "--repeats must be at least 1"),
        (["throughput", "--mixed-output-len", "9", "3"], "lower length first"),
        (["latency", "-m", "shape:tiny", "--batch-sizes", "3", "--max-num-seqs", "2"], "--max-num-seqs 3"),
        (["prefill", "-m", "shape:tiny", "--input-len", "600"], "--max-model-len 601"),
        (["latency", "-m", "nowhere"], "no model"),
        (["startup", "--dtype", "int3"], "dtype"),
        (["overhead", "-m", "shape:tiny"], "too few for that of tale"),
        (
            ["latency", "-m", "shape:tiny", "--repeats", "1", "--output-len", "2", "--plot", "x.bmp"],
            "png, svg, pdf",
        ),
        (
            ["latency", "-m", "shape:tiny", "--repeats", "1", "--output-len", "2", "--json", "/no/such/x"],
            "cannot be written",
        ),
    ],
)
def test_bad_input_is_one_clear_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("headrace: error: ") and said in shown and shown.count("\n") == 1


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.count(f"headrace bench {name}") >= 3


def test_an_interrupt_prints_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second row is interrupted; the first one is printed and written, and marked as not the whole."""

    def interrupted(*args: object, **options: object) -> object:
        yield next(closed_rows(*args, **options))  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.bench.model.throughput.closed_rows", interrupted)
    path = tmp_path / "out.json"
    words = ["bench", "throughput", "-m", "shape:tiny", *SMALL, *CLOSED, *MIXED, "--json", str(path)]
    assert main(words) == 130
    report = Report.from_json(json.loads(path.read_text(encoding="utf-8")))
    assert not report.complete and len(report.rows) == 1
    assert "interrupted" in capsys.readouterr().out


def test_only_json_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "latency", "-m", "shape:tiny", *SMALL, "--output-len", "3", "--json", "-"]
    assert main(words) == 0
    assert Report.from_json(json.loads(capsys.readouterr().out)).kind == "latency"


DRAWN = {
    "latency": ["--output-len", "3", "--repeats", "1"],
    "startup": ["--repeats", "1"],
    "profile": ["--input-len", "4", "--output-len", "3"],
    "overhead": ["--batch-sizes", "1", "--steps", "10"],
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "latency" else pytest.mark.long) for kind in DRAWN]
)
def test_a_plot_is_drawn(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    model = "tale" if kind == "overhead" else "shape:tiny"
    words = ["bench", kind, "-m", model, "--num-threads", "1", *DRAWN[kind], "--plot", str(path)]
    assert main(words) == 0
    drawn = path.read_text(encoding="utf-8")
    assert drawn.startswith("<?xml") and len(drawn) > 2000
