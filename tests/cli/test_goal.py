"""`--for` and `headrace optimize` on the command line: reasons, settled options, the checklist, refusals."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from headrace.bench.native import roofline
from headrace.cli import main
from headrace.cli.parser import Parser
from headrace.cli.server import serve


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No profile is stored, and no roofline is measured: rates are assumed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(roofline, "measure_roofline", lambda *_, **__: None)


def test_inspect_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "tale", "--for", "latency", "--max-num-seqs", "5"]) == 0
    text = capsys.readouterr().out
    assert "--for latency, by assumed rates" in text and "up to 5 at once" in text
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
    config, _ = serve._options(options("--for", "throughput", "--block-size", "16", "--max-model-len", "256"))
    assert config.step_time_budget == "off" and (config.max_num_seqs or 0) >= 32 and config.block_size == 16
    said = capsys.readouterr().out
    assert "headrace: --for throughput" in said and "max_num_seqs" in said
    assert serve._options(options())[0].step_time_budget == "auto"
    assert serve._options(options("--step-time-budget", "0.2"))[0].step_time_budget == 0.2
    assert serve._options(options("--no-kv-cache"))[0].step_time_budget == "off"


def test_optimize_prints_the_checklist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "tale", "--rate", "3", "--no-enable-prefix-caching"]) == 0
    text = capsys.readouterr().out
    assert "tale on this, by assumed rates" in text and "of what the machine can serve" in text
    (line,) = [line for line in text.splitlines() if line.startswith("  prefix cache")]
    assert " off " in line and "leave --no-enable-prefix-caching out" in line
    assert main(["optimize", "shape:llama-3.1-8b", "--hardware", "h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hardware"] == "h100" and found["use"] is None
    assert {item["state"] for item in found["items"]} == {"on", "off", "not for you"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("shape:llama-2-70b", "--hardware", "t4"), "does not fit on t4"),
        (("tale", "--hardware", "h1000"), "did you mean h100"),
        (("tale", "--rate", "0"), "--rate must be between"),
        (
            ("shape:llama-3.1-8b", "--hardware", "h100", "--prompt-tokens", "200000"),
            "longer than the context of 131072",
        ),
    ],
)
def test_optimize_refuses(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", *words]) != 0
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
