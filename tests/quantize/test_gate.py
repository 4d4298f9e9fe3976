"""The gate: what was lost is written down, matrices that hurt get more bits, limits that cannot be met are named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.errors import HeadraceError
from headrace.evaluation.measures import Agreement, Divergence, Perplexity
from headrace.evaluation.quality import Limits, Quality, write_quality
from headrace.quantize.gate import FolderPlan, GGUFPlan, within_limits
from headrace.quantize.gguf.run import GGUFOptions
from headrace.quantize.options import QuantizeOptions, Report
from tests.places import TALE
from tests.tiny_checkpoint import CONFIGS, write

ERRORS = {"0.qkv": 0.4, "0.down": 0.1, "1.qkv": 0.2, "1.down": 0.1}


def lost(kl: float, rise: float = 0.0) -> Divergence:
    base = Perplexity(100, 1.0, 0.1)
    model = Perplexity(100, 1.0 + rise, 0.1)
    return Divergence(model, base, kl, 0.0, kl, kl, kl, 0.9, 0.01)


def test_limits_say_how_far_off_and_what_would_pass() -> None:
    limits = Limits(0.02, 0.01)
    assert limits.excess(lost(0.01)) == pytest.approx(0.5)
    assert limits.excess(lost(0.01, 0.05)) > 5
    assert limits.would_pass(lost(0.03)) == "--max-kl 0.0303 --max-perplexity-increase 0.01"
    assert limits.excess(lost(float("nan"))) == limits.excess(lost(0.0, float("nan"))) == float("inf")
    assert Limits().excess(lost(9.0)) == 0 and Limits(0.0).excess(lost(1e-9)) == float("inf")


def test_the_matrices_that_hurt_most_come_first() -> None:
    wider = FolderPlan(QuantizeOptions()).widened(ERRORS, 0.5)
    assert wider is not None and wider.options.keep == ("0.qkv",)
    assert FolderPlan(QuantizeOptions()).widened({"0.qkv": 0.1}, 0.5) is None
    whole = FolderPlan(QuantizeOptions(head=True)).widened({"head": 0.1, "0.qkv": 0.4, "0.down": 0.2}, 0.0)
    assert whole is not None and whole.wide == (("0.qkv", "as it was"), ("head", "as it was"))
    assert not whole.options.head and whole.widened({"0.down": 0.2}, 0.5) is None
    tensors = {name: {f"blk.{name}": "Q4_K"} for name in ERRORS}
    plan = GGUFPlan(GGUFOptions("Q4_K_S"), tensors, {"output.weight": "Q6_K"})
    once = plan.widened(ERRORS, 0.6)
    assert once is not None and once.wide == (("blk.0.qkv", "Q5_K"),)
    all_wide = plan.widened(ERRORS, 0.0)
    assert all_wide is not None and {type for _, type in all_wide.wide} == {"F16"}
    ends = all_wide.widened({}, 0.5)
    assert ends is not None and ("output.weight", "F16") in ends.wide and ends.widened({}, 0.5) is None


def test_rounds_go_on_until_the_limits_are_met(tmp_path: Path) -> None:
    kept: list[int] = []

    def make(plan: FolderPlan, folder: Path) -> Report:
        folder.mkdir()
        kept.append(len(plan.options.keep))
        return Report({name: e for name, e in ERRORS.items() if name not in plan.options.keep}, 1, 4.0, (), 1)

    def measure(folder: Path) -> tuple[Divergence, Agreement]:
        return lost(0.08 / (1 + kept[-1]) ** 2), Agreement(1, 256, 1.0, 1.0)

    told: list[str] = []
    plan = FolderPlan(QuantizeOptions())
    *_, folder = within_limits(plan, Limits(0.01), tmp_path / "out", make, measure, told.append)
    assert folder.is_dir() and kept == sorted(kept) and kept[-1] >= 2 and len(told) == len(kept) - 1
    with pytest.raises(HeadraceError, match=r"the limits are not met.*--max-kl 0\.00\d+ would pass"):
        within_limits(plan, Limits(1e-9), tmp_path / "out", make, measure, told.append)
    assert not folder.exists() and not (tmp_path / "out").exists()


def test_what_is_not_a_number_does_not_pass_and_no_limit_is_advised(tmp_path: Path) -> None:
    def make(plan: FolderPlan, folder: Path) -> Report:
        folder.mkdir()
        return Report({name: e for name, e in ERRORS.items() if name not in plan.options.keep}, 1, 4.0, (), 1)

    def measure(folder: Path) -> tuple[Divergence, Agreement]:
        return lost(float("nan"), float("nan")), Agreement(1, 256, 0.0, 0.0)

    with pytest.raises(HeadraceError, match="gives infinite numbers"):
        within_limits(
            FolderPlan(QuantizeOptions()), Limits(0.01), tmp_path / "out", make, measure, lambda text: None
        )
    assert not list(tmp_path.iterdir())


def test_the_page_has_layers_in_order_and_the_head_after_them(tmp_path: Path) -> None:
    errors = {"10.qkv": 0.1, "2.qkv": 0.2, "head": 0.3}
    quality = Quality("new", "old", "how", lost(0.1), Agreement(1, 256, 1.0, 1.0), errors, 1, 4.0)
    write_quality(tmp_path, quality)
    assert list(json.loads((tmp_path / "quality.json").read_text())["layers"]) == ["2", "10", "head"]
    page = (tmp_path / "QUALITY.md").read_text()
    assert "| head | 30.00% | head | 30.00% |" in page and "change of the products" in page
    write_quality(tmp_path, replace(quality, calibrated=False))
    page = (tmp_path / "QUALITY.md").read_text()
    assert "|change of the weights| / |weights|: root" in page and "products" not in page


def test_the_page_names_every_option_that_decided_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "headrace.cli.models.quantize._compare", lambda args, folder: (lost(0.1), Agreement(1, 256, 1.0, 1.0))
    )
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", CONFIGS["mistral"] | {"num_hidden_layers": 1})
    words = (
        "--method rtn --bits 8 --group-size 32 --asymmetric --clip --head --samples 0 --num-threads 1 --eval"
    )
    assert main(["quantize", str(tmp_path / "model"), "-o", str(tmp_path / "out"), *words.split()]) == 0
    page = (tmp_path / "out" / "QUALITY.md").read_text()
    for word in (
        "--bits 8",
        "--group-size 32",
        "--asymmetric",
        "--clip",
        "--head",
        "--samples 0",
        "--seed 0",
    ):
        assert word in page, word


@pytest.mark.parametrize(
    ("words", "said"),
    [("-o .", "name a folder"), ("-o out --eval --eval-data none.txt", "cannot read none.txt")],
)
def test_what_cannot_end_well_is_refused_before_the_work(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["quantize", "tale", "--samples", "1", "--length", "8", *words.split()]) == 1
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("format", ["gguf:Q4_0", "compressed-tensors"])
def test_the_command_widens_and_writes_its_page(
    format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", CONFIGS["mistral"] | {"num_hidden_layers": 2})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE / name, tmp_path / "model")
    words = ["quantize", str(tmp_path / "model"), "--samples", "8", "--length", "64", "--num-threads", "1"]
    words += ["--format", format, "--eval-tokens", "300"]
    words += [] if format.startswith("gguf") else ["--group-size", "32"]
    out = tmp_path / "out"
    assert main([*words, "-o", str(out), "--eval"]) == 0
    before = json.loads((out / "quality.json").read_text())["divergence"]["mean"]
    page = (out / "QUALITY.md").read_text()
    assert (
        "| KL divergence, mean |" in page and "| 1 |" in page and "<svg" in (out / "quality.svg").read_text()
    )
    good = tmp_path / "good"
    assert main([*words, "-o", str(good), "--max-kl", str(0.6 * before)]) == 0
    found = json.loads((good / "quality.json").read_text())
    assert found["divergence"]["mean"] <= 0.6 * before and found["wide"]
    assert main([*words, "-o", str(tmp_path / "none"), "--max-kl", "1e-12"]) == 1
    assert "would pass" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "model", "out"]
