"""`--for` on the command line: inspect gives the goal as the reason, serve starts with what was settled."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from headrace.bench import roofline
from headrace.cli import main, serve
from headrace.cli.parser import Parser


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No profile is stored, and no roofline is measured: rates are assumed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(roofline, "measure_roofline", lambda *_, **__: None)


def test_inspect_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "tale", "--for", "latency", "--max-num-seqs", "5"]) == 0
    text = capsys.readouterr().out
    assert "--for latency, by assumed rates" in text and "5 requests at once" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert "for latency: " in lines["step_time_budget"] and " auto " in lines["step_time_budget"]
    assert "asked for" in lines["max_num_seqs"] and "for latency" not in lines["max_num_seqs"]


@pytest.mark.parametrize(
    ("goal", "message"), [("ttft=1e-6", "nearest possible is --for ttft="), ("soon", "--for takes latency")]
)
def test_goals_that_cannot_be(goal: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "tale", "--for", goal]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def options(*words: str) -> argparse.Namespace:
    parser = Parser()
    serve.add_parser(parser.add_subparsers())
    return parser.parse_args(["serve", "tale", *words])


def test_serve_starts_with_what_was_settled(capsys: pytest.CaptureFixture[str]) -> None:
    config, _ = serve._options(options("--for", "throughput", "--block-size", "16"))
    assert config.step_time_budget == "off" and (config.max_num_seqs or 0) >= 32 and config.block_size == 16
    said = capsys.readouterr().out
    assert "headrace: --for throughput" in said and "max_num_seqs" in said
    assert serve._options(options())[0].step_time_budget == "auto"
    assert serve._options(options("--step-time-budget", "0.2"))[0].step_time_budget == 0.2
    assert serve._options(options("--no-kv-cache"))[0].step_time_budget == "off"
