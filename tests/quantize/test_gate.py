"""The gate: what was lost is written down, matrices that hurt get more bits, limits that cannot be met are named."""

from __future__ import annotations

import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.errors import ModelError
from headrace.evaluation.measures import Agreement, Divergence, Perplexity
from headrace.evaluation.quality import FILES, Limits, Quality, write_quality
from headrace.models.safetensors_reader import SafetensorsFile
from headrace.models.source import resolve_model
from headrace.models.stored import stored_spec
from headrace.quantize.bits.auto import GROUPS, width_table
from headrace.quantize.bits.ladder import FolderPlan, Step, folder_plan
from headrace.quantize.gate import GGUFPlan, LimitsNotMet, within_limits
from headrace.quantize.gguf.run import GGUFOptions
from headrace.quantize.options import QuantizeOptions, Report, Width
from headrace.quantize.run import quantize
from tests.places import TALE
from tests.tiny_checkpoint import CONFIGS, write

ERRORS = {"0.qkv": 0.4, "0.down": 0.1, "1.qkv": 0.2, "1.down": 0.1}


def lost(kl: float, rise: float = 0.0) -> Divergence:
    base = Perplexity(100, 1.0, 0.1)
    model = Perplexity(100, 1.0 + rise, 0.1)
    return Divergence(model, base, kl, 0.0, kl, kl, kl, 0.9, 0.01, 0.0)


def test_limits_say_how_far_off_and_what_would_pass() -> None:
    limits = Limits(0.02, 0.01)
    assert limits.excess(lost(0.01)) == pytest.approx(0.5)
    assert limits.excess(lost(0.01, 0.05)) > 5
    assert limits.would_pass(lost(0.03)) == "--max-kl 0.0303 --max-perplexity-increase 0.01"
    assert limits.excess(lost(float("nan"))) == limits.excess(lost(0.0, float("nan"))) == float("inf")
    assert Limits().excess(lost(9.0)) == 0 and Limits(0.0).excess(lost(1e-9)) == float("inf")


def ladder(asked: int, *wider: int, size: int = 100) -> tuple[Step, ...]:
    steps = [Step(Width(bits, 32), size * bits) for bits in (asked, *wider)]
    return (*steps, Step(None, 16 * size))


LADDERS = {name: ladder(3, 4, 8) for name in ERRORS}


def test_matrices_widen_a_step_at_a_time() -> None:
    plan = FolderPlan(QuantizeOptions(bits=3, group=32), LADDERS)
    once = plan.widened(ERRORS, 0.5)
    assert once is not None and once.options.widths == (("0.qkv", Width(4, 32)),) and not once.options.keep
    assert once.wide == (("0.qkv", "4 bits, groups of 32"),)
    twice = once.widened(ERRORS | {"0.qkv": 0.2}, 0.5)
    assert twice is not None and dict(twice.options.widths).keys() == {"0.qkv", "1.qkv"}
    whole = plan.widened(ERRORS, 0.0)
    assert (
        whole is not None and len(whole.options.keep) == 3
    )  # with nothing quantised it were the model itself
    (last,) = ERRORS.keys() - {*whole.options.keep}
    assert dict(whole.options.widths) == {last: Width(8, 32)} and whole.widened({last: 0.1}, 0.5) is None


def test_what_was_measured_comes_before_errors_and_bytes_count() -> None:
    losses = {name: {Width(3, 32): 1.0, Width(4, 32): 0.2, Width(8, 32): 0.0} for name in ERRORS}
    losses["1.down"] = {Width(3, 32): 9.0, Width(4, 32): 3.0, Width(8, 32): 0.0}
    asked = 0

    def measured() -> dict[str, dict[Width, float]]:
        nonlocal asked
        asked += 1
        return losses

    plan = FolderPlan(QuantizeOptions(bits=3, group=32), LADDERS, measured)
    assert asked == 0
    wider = plan.widened(ERRORS, 0.7)
    assert wider is not None and wider.options.widths == (("1.down", Width(4, 32)),) and asked
    small = FolderPlan(plan.options, LADDERS | {"0.down": ladder(3, 4, 8, size=1)})
    wider = small.widened(ERRORS, 0.99)
    assert wider is not None and wider.wide == (("0.down", "4 bits, groups of 32"),)


def test_heads_and_formats_of_one_width_go_to_floats() -> None:
    ladders = dict.fromkeys(("head", "0.qkv", "0.down"), ladder(4))
    plan = FolderPlan(QuantizeOptions(group=32, head=True, format="awq"), ladders)
    whole = plan.widened({"head": 0.1, "0.qkv": 0.4, "0.down": 0.2}, 0.0)
    assert whole is not None and set(whole.wide) == {("0.qkv", "as it was"), ("head", "as it was")}
    assert not whole.options.head and whole.options.keep == ("0.qkv",)
    assert whole.widened({"0.down": 0.2}, 0.5) is None


def test_types_of_a_file_widen_a_step_at_a_time() -> None:
    tensors = {name: {f"blk.{name}": "Q4_K"} for name in ERRORS}
    plan = GGUFPlan(GGUFOptions("Q4_K_S"), tensors, {"output.weight": "Q6_K"})
    once = plan.widened(ERRORS, 0.6)
    assert once is not None and once.wide == (("blk.0.qkv", "Q5_K"),)
    all_wide = plan.widened(ERRORS, 0.0)
    assert all_wide is not None and {type for _, type in all_wide.wide} == {"F16"}
    ends = all_wide.widened({}, 0.5)
    assert ends is not None and ("output.weight", "F16") in ends.wide and ends.widened({}, 0.5) is None


@pytest.mark.parametrize(
    ("options", "bits"),
    [
        ({"bits": 3, "method": "awq"}, [3, 4, 8]),
        ({"format": "gptq"}, [4, 8]),
        ({"format": "awq"}, [4]),
        ({"symmetric": False}, [4]),
        ({"method": "smoothquant", "bits": 8, "group": None}, [8]),
        ({"widths": (("0.qkv", Width(2, 16)),), "head": True}, [4, 8]),
    ],
)
def test_ladders_are_what_the_format_holds(options: dict[str, Any], bits: list[int], tmp_path: Path) -> None:
    write(tmp_path, CONFIGS["mistral"] | {"num_hidden_layers": 1})
    source = resolve_model(str(tmp_path))
    plan = folder_plan(source, stored_spec(source), QuantizeOptions(**{"group": 32, **options}), None)
    ways = plan.ladders["0.down"]
    assert [one.width.bits for one in ways if one.width] == bits and ways[-1].width is None
    assert [one.size for one in ways] == sorted({one.size for one in ways})
    if "widths" in options:
        assert [one.width for one in plan.ladders["0.qkv"][:2]] == [Width(2, 16), Width(3, 16)]
        assert len(plan.ladders["head"]) == 3 and plan.ladders["head"][-1].size > 64 * 2048


@pytest.mark.parametrize("tied", [False, True])
def test_heads_get_more_bits_whether_they_are_the_embeddings_or_not(tied: bool, tmp_path: Path) -> None:
    write(tmp_path, CONFIGS["mistral"] | {"num_hidden_layers": 1, "tie_word_embeddings": tied})
    source = resolve_model(str(tmp_path))
    spec = stored_spec(source)
    plan = folder_plan(source, spec, QuantizeOptions("rtn", 3, 32, head=True), None)
    wider = plan.widened({"head": 0.9, "0.down": 0.1}, 0.5)
    assert wider is not None and wider.wide == (("head", "4 bits, groups of 32"),)
    quantize(source, spec, wider.options, (), tmp_path / "out", num_threads=1)
    stored = SafetensorsFile(tmp_path / "out" / "model-00003-of-00003.safetensors")
    assert stored.entries["lm_head.weight_packed"].shape == (2048, 64 * 4 // 32)


def test_rounds_go_on_until_the_limits_are_met() -> None:
    wide: list[int] = []

    def make(plan: FolderPlan) -> Report:
        wide.append(sum(2 if to == "as it was" else 1 for _, to in plan.wide))
        return Report({name: e for name, e in ERRORS.items() if name not in plan.options.keep}, 1, 4.0, (), 1)

    def measure() -> tuple[Divergence, Agreement]:
        return lost(0.08 / (1 + wide[-1]) ** 2), Agreement(1, 256, 1.0, 1.0)

    told: list[str] = []
    plan = FolderPlan(QuantizeOptions(bits=3, group=32), LADDERS)
    found, report, *_ = within_limits(plan, Limits(0.01), make, measure, told.append)
    assert found.wide and report.errors and wide == sorted(wide) and wide[-1] >= 2
    assert len(told) == len(wide) - 1
    with pytest.raises(LimitsNotMet, match=r"the limits are not met.*--max-kl 0\.00\d+ would pass"):
        within_limits(plan, Limits(1e-9), make, measure, told.append)
    best = 0.08 / (1 + max(wide)) ** 2 * 1.01
    with pytest.raises(
        LimitsNotMet, match=rf"--max-kl {best:.3g} would pass"
    ):  # not what the first round gave
        within_limits(plan, Limits(0.0), make, measure, told.append)


def test_rounds_end_soon_whatever_the_measures_say() -> None:
    """Errors promise each time that little is missing, and until all but a few matrices are floats it is missing."""
    ladders = {str(number): ladder(3, 4, 8) for number in range(100)}
    made: list[int] = []

    def make(plan: FolderPlan) -> Report:
        made.append(len(plan.options.keep))
        return Report({name: 0.1 for name in ladders if name not in plan.options.keep}, 1, 4.0, (), 1)

    def measure() -> tuple[Divergence, Agreement]:
        return lost(0.009 if made[-1] >= 95 else 0.0101), Agreement(1, 256, 1.0, 1.0)

    plan = FolderPlan(QuantizeOptions(bits=3, group=32), ladders)
    found, *_ = within_limits(plan, Limits(0.01), make, measure, lambda text: None)
    assert len(found.options.keep) >= 95 and 8 < len(made) < 16
    made.clear()
    with pytest.raises(LimitsNotMet, match=r"--max-kl 0\.00909 would pass"):
        within_limits(plan, Limits(0.00899), make, measure, lambda text: None)
    assert made[-1] == 99 and len(made) < 16  # the last matrix stays 8 bits


def test_a_file_whose_errors_are_zero_widens_too() -> None:
    tensors = {name: {f"blk.{name}": "Q8_0"} for name in ERRORS}
    plan: GGUFPlan | None = GGUFPlan(GGUFOptions("Q8_0"), tensors, {"output.weight": "Q8_0"})
    rounds = 0
    while plan is not None:
        last, plan = plan, plan.widened(dict.fromkeys(ERRORS, 0.0), 0.5, 2)
        rounds += 1
    assert len(last.wide) == 5 and rounds == 4  # 2, 2 and the output


def test_what_is_not_a_number_does_not_pass_and_no_limit_is_advised() -> None:
    def make(plan: FolderPlan) -> Report:
        return Report({name: e for name, e in ERRORS.items() if name not in plan.options.keep}, 1, 4.0, (), 1)

    def measure() -> tuple[Divergence, Agreement]:
        return lost(float("nan"), float("nan")), Agreement(1, 256, 0.0, 0.0)

    plan = FolderPlan(QuantizeOptions(bits=3, group=32), LADDERS)
    with pytest.raises(LimitsNotMet, match="gives infinite numbers"):
        within_limits(plan, Limits(0.01), make, measure, lambda text: None)


def test_the_page_has_layers_in_order_and_the_head_after_them(tmp_path: Path) -> None:
    errors = {"10.qkv": 0.1, "2.qkv": 0.2, "head": 0.3}
    quality = Quality("new", "old", "how", lost(0.1), Agreement(1, 256, 1.0, 1.0), errors, 1, 4.0)
    write_quality(tmp_path, quality)
    assert list(json.loads((tmp_path / "quality.json").read_text())["layers"]) == ["2", "10", "head"]
    page = (tmp_path / "QUALITY.md").read_text()
    assert "| bits a weight | 4.00 |" in page
    assert "| head | 30.00% | head | 30.00% |" in page and "change of the products" in page
    write_quality(tmp_path, replace(quality, calibrated=False, all_bits=5.25))
    page = (tmp_path / "QUALITY.md").read_text()
    assert "| bits a weight | 4.00 (5.25 of all matrices, floats included) |" in page
    assert json.loads((tmp_path / "quality.json").read_text())["all_bits"] == 5.25
    assert "|change of the weights| / |weights|: root" in page and "products" not in page


def test_the_page_names_every_option_that_decided_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "headrace.cli.models.quantize._compare",
        lambda args, source, folder, records: (lost(0.1), Agreement(1, 256, 1.0, 1.0)),
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


def test_what_auto_has_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, passes = [lost(0.1), lost(0.01)], []

    def measured(*given: Any) -> Any:
        passes.append(given[4])
        return width_table(*given)

    monkeypatch.setattr("headrace.quantize.bits.auto.width_table", measured)
    monkeypatch.setattr(
        "headrace.cli.models.quantize._compare",
        lambda args, source, folder, records: (found.pop(0), Agreement(1, 256, 1.0, 1.0)),
    )
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", CONFIGS["mistral"] | {"num_hidden_layers": 1})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE / name, tmp_path / "model")
    words = "--method auto --bits-per-weight 5 --samples 2 --length 16 --num-threads 1 --max-kl 0.05"
    assert main(["quantize", str(tmp_path / "model"), "-o", str(tmp_path / "out"), *words.split()]) == 0
    assert passes == [GROUPS] and not found
    assert json.loads((tmp_path / "out" / "quality.json").read_text())["wide"]


def measured_run(
    model: Path, out: Path, words: str, monkeypatch: pytest.MonkeyPatch, killed: bool = False
) -> list[int]:
    """Quantise to 8 bits; gives how many texts each measuring got."""
    texts: list[int] = []

    def compare(*given: Any) -> tuple[Divergence, Agreement]:
        texts.append(len(given[3]))
        return lost(0.1), Agreement(1, 256, 1.0, 1.0)

    def commit(*_: Any) -> None:
        raise ModelError("killed")

    if not model.exists():
        model.mkdir()
        write(model, CONFIGS["mistral"] | {"num_hidden_layers": 1})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TALE / name, model)
    command = f"quantize {model} -o {out} --method rtn --bits 8 --group-size 32 --num-threads 1 {words}"
    with monkeypatch.context() as patch:
        patch.setattr("headrace.cli.models.quantize._compare", compare)
        if killed:
            patch.setattr("headrace.quantize.formats.files.Unfinished.commit", commit)
        assert main(command.split()) == int(killed)
    return texts


def test_a_page_of_an_earlier_try_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    measured_run(model, out, "--samples 0 --eval --eval-tokens 99", monkeypatch, killed=True)
    files = out.with_name(".out.unfinished") / "files"
    made = {path.name: path.stat().st_mtime_ns for path in files.glob("*.safetensors")}
    assert {*FILES} <= {path.name for path in files.iterdir()}
    measured_run(model, out, "--samples 0", monkeypatch)
    assert made and made == {path.name: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}
    assert not {*FILES} & {path.name for path in out.iterdir()}


def test_texts_may_come_from_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "texts"
    os.mkfifo(pipe)
    text = "\n\n".join(["Once upon a time there was a mill."] * 5)
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    words = f"--samples 3 --length 16 --data {pipe} --eval --eval-data {pipe}"
    assert measured_run(tmp_path / "model", tmp_path / "out", words, monkeypatch) == [5]
    writer.join()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-o .", "name a folder"),
        ("-o out --eval --eval-data /dev/null", "/dev/null holds no text to predict"),
        ("-o out --eval --eval-data none.txt", "cannot read none.txt"),
        ("-o out --method auto --size much", "cannot read 'much' as a size"),
        ("-o out --smoothing 0.7", "--smoothing is for --method smoothquant"),
        ("-o out --method rtn --samples 0 --data none.txt", "--data needs --samples"),
        ("-o out --eval-data none.txt", "--eval-data is for --eval and for limits"),
        ("-o out --self-calibration --group-size 80", "no matrix of tale can be stored"),
        ("-o out --self-calibration --format gguf:Q9", "there is no GGUF type 'Q9'"),
    ],
)
def test_what_cannot_end_well_is_refused_before_the_work(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr("headrace.cli.models.quantize._texts", read)
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
    capsys.readouterr()
    assert main([*words, "-o", str(good), "--max-kl", str(0.6 * before)]) == 0
    found = json.loads((good / "quality.json").read_text())
    assert found["divergence"]["mean"] <= 0.6 * before and found["wide"]
    if not format.startswith("gguf"):
        assert all(to == "8 bits, groups of 32" for _, to in found["wide"])
        floats = tmp_path / "floats"
        capsys.readouterr()
        assert main([*words, "-o", str(floats), "--format", "awq", "--max-kl", str(0.6 * before)]) == 0
        assert "weights of all matrices" in capsys.readouterr().out
        assert "floats included" in (floats / "QUALITY.md").read_text()
        shutil.rmtree(floats)
    assert main([*words, "-o", str(tmp_path / "none"), "--max-kl", "1e-12"]) == 1
    assert "would pass" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "model", "out"]
