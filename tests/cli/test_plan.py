from __future__ import annotations

import json
import shlex
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.build import survey
from headrace.cli import main
from headrace.config import EngineConfig
from headrace.models.source import BUNDLED_FOLDER
from headrace.plan.hardware import Machine
from headrace.plan.units import GIB

LLAMA = "shape:llama-3.1-8b"
FIELDS = {field.name for field in fields(EngineConfig)}


def test_a_plan_in_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", LLAMA, "--hardware", "h100", "--price-per-hour", "2.5", "--users", "20"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "8,030,261,248", "NVIDIA H100 SXM 80GB", "Memory by format", "fp8", "decode steps are bound by compute from a",
        "1M output", "Contexts in", "GQA, 8 KV heads", "this model", "Best settings", "a million output tokens",
        "no command: this version runs models on CPUs",
    ):  # fmt: skip
        assert words in shown


def test_the_ranking_is_by_money_only_where_every_machine_has_a_price(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for prices, ranked in (
        ("h100=2.5", "the fewest devices"),
        ("h100=2.5,l4=1", "output tokens for the money"),
    ):
        assert main(["plan", LLAMA, "--hardware", "h100,l4", "--price-per-hour", prices]) == 0
        assert f"best: {ranked}" in capsys.readouterr().out


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--hardware",
        "2xl4",
        "--formats",
        "int8",
        "--prompt-tokens",
        "100",
        "--output-tokens",
        "50",
        "--json",
    ]
    assert main(["plan", LLAMA, *words]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["model"]["parameters"] == 8_030_261_248 and plan["hardware"]["devices"] == 2
    assert [row["label"] for row in plan["formats"]] == ["int8"]
    assert plan["load"]["prompt_tokens"] == 100 and plan["problem"] is None
    assert plan["speed"]["batches"][0]["batch"] == 1 and plan["settings"][0]["format"] == "int8"


def test_only_the_config_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = (BUNDLED_FOLDER / "tale" / "config.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    assert main(["plan", str(tmp_path), "--hardware", "t4", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert main(["plan", "tale", "--hardware", "t4", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert alone["model"]["parameters"] == whole["model"]["parameters"] == 5_246_208
    assert alone["formats"] == whole["formats"]


def test_fit_is_the_memory_of_each_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", LLAMA, "--hardware", "h100", "--fit", "24GiB", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["hardware"]["memory_bytes"] == 24 << 30
    assert all(row["needed"] < 24 << 30 for row in plan["formats"])


def test_a_promise_that_nothing_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", LLAMA, "--hardware", "l4", "--ttft", "0.001"]
    assert main(words) == 1
    shown = capsys.readouterr()
    assert "Memory by format" in shown.out
    assert "error: no setting keeps a TTFT of 0.001 s; the nearest is" in shown.err
    assert main([*words, "--json"]) == 1
    plan = json.loads(capsys.readouterr().out)
    assert (
        plan["settings"] == [] and plan["nearest"]["ttft_s"] > 0.001 and "no setting keeps" in plan["problem"]
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--hardware", "h101"], "did you mean h100?"),
        (["--hardware", "h100,"], "no hardware ''"),
        (["--formats", "int9"], "none of the formats here"),
        (["--fit", "much"], "cannot read 'much' as a size"),
        (["--prompt-tokens", "0"], "--prompt-tokens must be between 1"),
        (["--prompt-tokens", "1000000"], "longer than the context"),
        (["--prefix-hit", "1.5"], "--prefix-hit must be between 0 and 1"),
        (["--users", "0"], "--users must be between"),
        (["--ttft", "0"], "--ttft must be between"),
        (["--ttft", "nan"], "--ttft must be between"),
        (["--price-per-hour", "0"], "a number above 0"),
        (["--hardware", "h100,l4", "--price-per-hour", "3"], "h100=3,l4="),
        (["--plot", "plan.gif"], "png, svg, pdf"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "shape:tiny", *words]) == 1
    shown = capsys.readouterr()
    assert sentence in shown.err and shown.out == "" and shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_configs_that_lie(
    tmp_path: Path, change: dict[str, object], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((BUNDLED_FOLDER / "tale" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}), encoding="utf-8")
    assert main(["plan", str(tmp_path), "--hardware", "h100"]) == 1
    assert sentence in capsys.readouterr().err


def test_inspect_answers_for_models_that_are_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "shape:llama-3.1-405b"]) == 1
    shown = capsys.readouterr()
    assert "405,853,388,800" in shown.out and "Memory" in shown.out and "Settings" in shown.out
    fit = shown.out.partition("\nFit\n")[2]
    assert "too little" in fit and "in int4" in fit and "large enough" in fit
    assert "of memory is available" in shown.err
    assert main(["inspect", "shape:llama-3.1-405b", "--program"]) == 0


@pytest.mark.long
def test_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "plan.svg"
    assert main(["plan", "shape:tiny", "--hardware", "t4", "--plot", str(file)]) == 0
    assert file.read_text(encoding="utf-8").count("<path") > 10


def test_a_plan_with_eviction(capsys: pytest.CaptureFixture[str]) -> None:
    """More sequences fit, and the engine takes the command that is printed."""
    load = [
        "--hardware",
        "epyc-9654",
        "--prompt-tokens",
        "8000",
        "--output-tokens",
        "200",
        "--formats",
        "stored",
    ]
    most = []
    for flags in ([], ["--kv-eviction", "snapkv", "--kv-eviction-budget", "512"]):
        assert main(["plan", LLAMA, *load, *flags, "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        most.append(plan["formats"][0]["batch"])
    assert most[1] > 5 * most[0] and plan["load"]["kv_eviction"]["budget"] == 512
    words = shlex.split(plan["settings"][0]["command"])
    assert words[:3] == ["headrace", "serve", LLAMA] and "snapkv" in words
    machine = Machine(
        "cpu", "CPU", 256 * GIB, 256 * GIB, 96, frozenset({"avx512_bf16"}), ("avx512", "portable")
    )
    options = {name.removeprefix("--").replace("-", "_"): value for name, value in pairwise(words[3:])}
    known = {
        name: int(value) if value.isdigit() else value for name, value in options.items() if name in FIELDS
    }
    resolved = survey(EngineConfig.from_kwargs(model=LLAMA, **known), machine=machine).resolved
    assert resolved.kv_eviction_budget == 512 and resolved.max_model_len == 8200
    assert main(["plan", LLAMA, *load, "--kv-eviction", "snapkv"]) == 0
    shown = capsys.readouterr().out
    assert "1,024 tokens of a prompt and up to 256 newer ones; answers are not exact" in shown


@pytest.mark.parametrize(
    ("model", "flags", "complaint"),
    [
        (LLAMA, ["--hardware", "h100", "--kv-eviction", "snapkv"], "which h100 does not run"),
        (LLAMA, ["--kv-eviction-budget", "100"], "has no meaning without --kv-eviction"),
        (LLAMA, ["--kv-eviction", "snapkv", "--kv-eviction-budget", "1"], "must be between 2 and"),
        ("shape:deepseek-v2-lite", ["--kv-eviction", "snapkv"], "not available for latent attention"),
    ],
)
def test_evictions_that_cannot_be_are_refused(
    model: str, flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", model, *flags]) == 1
    assert complaint in capsys.readouterr().err
