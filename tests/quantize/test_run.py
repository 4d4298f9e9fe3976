"""Quantising whole models: what the readers find, resumption, families, and one sentence where it cannot be done."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from headrace import LLM, SamplingParams
from headrace.cli import main
from headrace.errors import HeadraceError
from headrace.models.config_reader import ConfigReader
from headrace.models.loader import load_weights
from headrace.models.packed.header import is_packed
from headrace.models.quantized.layout import Matrix
from headrace.models.quantized.methods import read_method
from headrace.models.safetensors_reader import SafetensorsFile
from headrace.models.source import resolve_model
from headrace.models.stored import open_weights, stored_spec
from headrace.quant.coded import dequantize
from headrace.quantize.formats.files import write_tensors
from headrace.quantize.formats.integers import FORMATS, module_patterns
from headrace.quantize.gguf.run import GGUFOptions, quantize_gguf
from headrace.quantize.options import QuantizeOptions, Report
from headrace.quantize.rounding.gptq import gptq
from headrace.quantize.rounding.scheme import Scheme, rtn
from headrace.quantize.run import quantize
from tests.models.hub import server
from tests.places import TALE
from tests.tiny_checkpoint import CONFIGS, PARALLEL, RECURRENT, write

TEXTS = [tuple((7 * text + 3 * at * at) % 2000 for at in range(24 + text)) for text in range(4)]


def made(model: str, folder: Path, texts: list[tuple[int, ...]] = TEXTS, **options: Any) -> Report:
    source = resolve_model(model)
    chosen = QuantizeOptions(**{"group": 32, "format": "gptq", **options})
    return quantize(source, stored_spec(source), chosen, texts, folder, num_threads=1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    write(folder, CONFIGS["mistral"] | {"num_hidden_layers": 2})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE / name, folder)
    return str(folder)


def matrices(model: str) -> Mapping[str, torch.Tensor]:
    source = resolve_model(model)
    found = load_weights(source, stored_spec(source), dtype=torch.float32).matrices
    return {name: one.weight for name, one in found.items() if isinstance(one.weight, torch.Tensor)}


@pytest.mark.parametrize(
    ("format", "bits", "group", "symmetric", "order", "scale"),
    [
        ("compressed-tensors", 4, 32, True, None, "f16"),
        ("compressed-tensors", 4, 16, False, "static", "bf16"),
        ("compressed-tensors", 8, None, False, None, "bf16"),
        ("compressed-tensors", 2, 32, True, None, "f16"),
        ("compressed-tensors", 3, 96, False, None, "bf16"),
        ("gptq", 2, 16, True, None, "f16"),
        ("gptq", 3, 32, False, "group", "f16"),
        ("gptq", 4, 32, False, "static", "f16"),
        ("gptq", 8, None, True, "static", "f16"),
        ("awq", 4, 32, True, None, "f16"),
        ("awq", 4, 16, False, "static", "f16"),
    ],
)
def test_readers_find_the_weights_that_were_computed(
    format: str, bits: int, group: int | None, symmetric: bool, order: Literal["static", "group"] | None,
    scale: Literal["f16", "bf16"], tmp_path: Path,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(bits)
    weight, x = (torch.randn(64, 96, generator=generator) for _ in range(2))
    form = FORMATS[format]
    scheme = Scheme(bits, group, symmetric, scale=scale, least_zero=form.least_zero)
    codes = gptq(weight, x.T @ x, scheme, order)
    tensors = form.tensors("m", codes)
    assert [one.form for one in tensors] == form.forms("m", 64, 96, scheme)
    assert all(one.form.size == one.array.nbytes for one in tensors)
    write_tensors(tmp_path / "one.safetensors", tensors)
    file = SafetensorsFile(tmp_path / "one.safetensors")
    method = read_method(format, ConfigReader(form.config({scheme: ["m"]}, order, ["head"])))
    layout = method.layout("m")
    assert layout is not None and method.layout("head") is None
    stored = layout.stored(64, 96)
    entries = {
        part.suffix: file.entries["m" + part.suffix] for part in stored if "m" + part.suffix in file.entries
    }
    assert len(entries) == len(file.entries)
    assert all(entries[part.suffix].shape in (part.shapes or ()) for part in stored if part.suffix in entries)
    found = dequantize(layout.decode(Matrix("m", 64, 96, entries, lambda suffix: file.raw("m" + suffix))))
    np.testing.assert_array_equal(found, codes.dequantize().numpy())


def test_a_model_is_what_rounding_its_matrices_gives(tiny: str, tmp_path: Path) -> None:
    report = made(tiny, tmp_path / "out", method="rtn", bits=4)
    before, after = matrices(tiny), matrices(str(tmp_path / "out"))
    scheme = Scheme(4, 32, least_zero=1)
    assert after.keys() == before.keys() and set(report.errors) == {
        name for name in before if name[0].isdigit()
    }
    for name, weight in before.items():
        expected = rtn(weight, scheme).dequantize() if name in report.errors else weight
        assert torch.equal(after[name], expected), name
    assert 0.01 < max(report.errors.values()) < 0.2 and 4.5 < report.bits < 5.2
    assert not report.kept and not list(tmp_path.glob(".*"))


def test_later_layers_make_up_for_earlier_ones(tiny: str, tmp_path: Path) -> None:
    """Each layer is calibrated on what the quantised layers before it give; without calibration nothing runs."""
    first = made(tiny, tmp_path / "a", method="gptq", bits=3)
    rounded = made(tiny, tmp_path / "b", method="rtn", bits=3)
    blind = made(tiny, tmp_path / "c", [], method="rtn", bits=3)
    assert sum(first.errors.values()) < sum(rounded.errors.values())
    same = matrices(str(tmp_path / "b")), matrices(str(tmp_path / "c"))
    assert all(torch.equal(one, same[1][name]) for name, one in same[0].items())
    assert blind.errors.keys() == rounded.errors.keys()


def test_norms_and_codes_of_awq_go_together(tiny: str, tmp_path: Path) -> None:
    report = made(tiny, tmp_path / "out", method="awq", bits=4, format="awq")
    assert not report.kept and not report.unscaled and max(report.errors.values()) < 0.2
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "awq" and config["modules_to_not_convert"] == ["lm_head"]
    sources = [resolve_model(one) for one in (tiny, str(tmp_path / "out"))]
    one, other = (load_weights(each, stored_spec(each), dtype=torch.float32) for each in sources)
    norms = one.vectors["1.input_norm"], other.vectors["1.input_norm"]
    assert not torch.equal(*norms)
    before, after = (
        one.matrices["1.qkv"].weight[:96] * norms[0],
        other.matrices["1.qkv"].weight[:96] * norms[1],
    )
    assert (before - after).norm() < 0.15 * before.norm()


def test_a_norm_that_two_halves_of_a_layer_read_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write(
        tmp_path / "model", PARALLEL["cohere2"] | {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    )
    model, out = str(tmp_path / "model"), str(tmp_path / "out")
    report = made(model, Path(out), method="awq", bits=8)
    assert not report.unscaled and max(report.errors.values()) < 0.02
    one, other = (
        load_weights(resolve_model(each), stored_spec(resolve_model(each)), dtype=torch.float32)
        for each in (model, out)
    )
    for name in ("0.qkv", "0.gate_up"):
        norm = "0.input_norm" if name == "0.qkv" else "0.post_norm"
        before, after = (each.matrices[name].weight * each.vectors[norm] for each in (one, other))
        rows = slice(96 if name == "0.qkv" else 128)  # what follows is divided by factors of its own
        assert not torch.equal(one.vectors[norm], other.vectors[norm])
        assert (before - after)[rows].norm() < 0.02 * before[rows].norm()


class Killed(BaseException):
    pass


@pytest.mark.parametrize(("method", "step"), [("gptq", 1), ("awq", 3), ("awq-gptq", 3)])
def test_a_killed_run_goes_on_and_gives_the_same_files(
    method: str, step: int, tiny: str, tmp_path: Path
) -> None:
    def run(folder: Path, stop: int | None = None, texts: list[tuple[int, ...]] = TEXTS) -> int:
        source, steps = resolve_model(tiny), 0

        def shown(done: int, total: int) -> None:
            nonlocal steps
            assert done <= total
            steps += 1
            if steps == stop:
                raise Killed

        options = QuantizeOptions(method, group=32, format="gptq")
        quantize(source, stored_spec(source), options, texts, folder, shown, num_threads=1)
        return steps

    run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "cut", step)
    unfinished = tmp_path / ".cut.unfinished"
    (unfinished / "files" / "model-00002-of-00003.safetensors.part").write_bytes(b"half")
    assert not (tmp_path / "cut").exists() and unfinished.exists()
    run(tmp_path / "cut")
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "cut").iterdir())
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name
    with pytest.raises(Killed):
        run(tmp_path / "other", step)
    run(tmp_path / "other", texts=TEXTS[:3])  # of other texts, which nothing of the killed run fits
    one, other = (
        load_file(tmp_path / folder / "model-00002-of-00003.safetensors") for folder in ("whole", "other")
    )
    assert any(not np.array_equal(one[name], other[name]) for name in one)


def test_what_the_format_cannot_hold_stays_as_it_is(tiny: str, tmp_path: Path) -> None:
    report = made(tiny, tmp_path / "out", method="rtn", group=128)
    assert report.kept and all(name.endswith("down") for name in report.errors)
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["dynamic"] and matrices(str(tmp_path / "out")).keys() == matrices(tiny).keys()
    with pytest.raises(HeadraceError, match=r"no matrix of .* can be stored"):
        made(tiny, tmp_path / "none", method="rtn", group=80)


def test_patterns_of_modules_leave_others_out() -> None:
    assert module_patterns(["a.0.b", "a.1.b"], ["a.0.c"]) == [r"a\.\d+\.b"]
    assert module_patterns(["a.0.b", "c"], ["a.1.b"]) == [r"a\.0\.b", "c"]
    assert module_patterns(["a.0.b", "a.2.b"], ["a.1.b"]) == [r"a\.(0|2)\.b"]
    assert module_patterns(["a.0.e.1.b", "a.2.e.0.b"], ["a.2.e.1.b"]) == [r"a\.0\.e\.1\.b", r"a\.2\.e\.0\.b"]


def test_bad_input_gets_one_sentence(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tiny, tmp_path / "out", method="rtn")
    (tmp_path / "few.txt").write_text("A fox.\n\nA hen and a fox.")
    for words, text in (
        ([str(tmp_path / "out")], "is quantised already, with gptq"),
        (["shape:llama-3.2-1b"], "has random weights"),
        ([tiny, "--bits", "3", "--format", "awq"], "holds 4 bits, not 3: --format compressed-tensors does"),
        (
            [tiny, "--method", "rtn", "--act-order"],
            "--act-order is for gptq, awq-gptq and auto: leave it out",
        ),
        ([tiny, "--act-order", "group"], "use --act-order static, or --format gptq"),
        ([tiny, "--group-size", "8"], "must be 16 to 256"),
        ([tiny, "--group-size", "few"], "must be 16 to 256, or channel"),
        ([tiny, "--samples", "0"], "gptq needs calibration texts: give --samples of at least 1"),
        ([tiny, "--method", "awq", "--samples", "0"], "awq needs calibration texts"),
        (
            [tiny, "--format", "awq", "--bits", "8"],
            "awq holds 4 bits, not 8: --format compressed-tensors does",
        ),
        ([tiny, "--data", str(tmp_path / "few.txt")], "holds 2 texts of 2 to 512 tokens, not 128"),
        ([tiny, "--samples", "-1"], "between 0 and"),
        (
            [tiny, "--method", "fp8", "--group-size", "128x128", "--samples", "0"],
            "with 8 bits and blocks of 128 x 128: their sizes do not fit; choose another --group-size",
        ),
        ([tiny, "--method", "rtn", "--samples", "0", "--group-size", "256"], "4 bits and groups of 256"),
        ([tiny, "--group-size", "9" * 5000], "must be 16 to 256, or channel"),
        ([tiny, "--group-size", "32", "--rotate", "--seed", str(1 << 64)], "--seed must be between 0 and"),
    ):
        assert main(["quantize", *words, "-o", str(tmp_path / "new")]) == 1
        assert text in " ".join(capsys.readouterr().err.split()), words
    assert main(["quantize", tiny, "-o", str(tmp_path / "out"), "--method", "rtn", "--samples", "0"]) == 1
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("how", [[], ["--method", "auto", "--size", "1MiB"]])
def test_tokens_that_the_model_does_not_have_are_refused(
    how: list[str], tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    write(model, CONFIGS["mistral"] | {"num_hidden_layers": 1, "vocab_size": 1000})
    words = [*how, "--group-size", "32", "--samples", "8"]
    assert main(["quantize", str(model), "-o", str(tmp_path / "out"), *words]) == 1
    assert "outside the model's vocabulary of 1000 ids" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_next_command_names_the_new_folder(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for output, name, path in (("tale", "./tale", "tale"), ("~/new", str(tmp_path / "home/new"), "home/new")):
        words = ["--method", "rtn", "--samples", "0", "--group-size", "32"]
        assert main(["quantize", tiny, "-o", output, *words]) == 0
        assert f"serve {name}`" in capsys.readouterr().out and (tmp_path / path / "config.json").is_file()


def test_the_model_is_the_one_in_the_folder_that_was_named(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from a hub, is downloaded once, and sampled and compared by the same files."""
    files = {path.name: path.read_bytes() for path in Path(tiny).iterdir()}
    with server.running() as hub:
        hub.repositories = {"org/tiny": server.Repository(files)}
        server.environment(monkeypatch, hub, str(tmp_path / "cache"))
        words = [
            "quantize",
            "org/tiny",
            "--download-dir",
            str(tmp_path / "models"),
            "-o",
            str(tmp_path / "out"),
        ]
        words += [
            "--method",
            "rtn",
            "--group-size",
            "32",
            "--samples",
            "2",
            "--length",
            "16",
            "--num-threads",
            "1",
        ]
        assert main([*words, "--self-calibration", "--eval", "--eval-tokens", "20"]) == 0
    assert (tmp_path / "models").is_dir() and not (tmp_path / "cache").exists()
    assert "Compared with org/tiny" in (tmp_path / "out" / "QUALITY.md").read_text()


def test_a_full_disk_leaves_nothing_under_the_name(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(opened: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(HeadraceError, match="cannot be written: its disk is full"):
            made(tiny, tmp_path / "out", method="rtn")
    assert not (tmp_path / "out").exists()
    made(tiny, tmp_path / "out", method="rtn")


def test_a_reader_of_the_output_that_has_gone_costs_no_work(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as output:
        monkeypatch.setattr("sys.stdout", output)
        words = ["--method", "rtn", "--samples", "0", "--group-size", "32"]
        assert main(["quantize", tiny, "-o", str(tmp_path / "out"), *words]) == 1
    assert "its reader closed the pipe" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_command_says_what_was_lost(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    words = ["--samples", "4", "--length", "32", "--group-size", "32", "--num-threads", "1"]
    assert main(["quantize", tiny, "-o", out, *words]) == 0
    printed = capsys.readouterr().out
    assert "relative error of the products of each matrix" in printed and "4.5" in printed
    assert "few texts" not in printed


@pytest.mark.parametrize("form", ["gptq", "gguf:q4_0"])
def test_fewer_tokens_than_features_are_said_to_be_few(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    group = [] if form.startswith("gguf") else ["--group-size", "32"]
    words = ["--samples", "1", "--length", "127", *group, "--num-threads", "1"]
    assert main(["quantize", tiny, "-o", str(tmp_path / "out"), "--format", form, *words]) == 0
    said = "few texts: 127 tokens, and matrices that read up to 128 features"  # those of the down projection
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("format", ["compressed-tensors", "gguf"])
def test_progress_without_texts_is_that_of_layers(
    format: str, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.models.weight_files.CHUNK", 64 * 1024)
    source, seen = resolve_model(tiny), list[tuple[int, int]]()

    def shown(done: int, total: int) -> None:
        seen.append((done, total))

    if format == "gguf":
        options = GGUFOptions("Q4_0", "rtn")
        quantize_gguf(source, stored_spec(source), options, [], tmp_path / "out", shown, num_threads=1)
    else:
        asked = QuantizeOptions("rtn", group=32, head=True)
        quantize(source, stored_spec(source), asked, [], tmp_path / "out", shown, num_threads=1)
    count = 6 if format == "gguf" else 3  # the ends come after the layers, there half of the rows at a time
    assert seen == [(number, count) for number in range(1, count + 1)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("format", "method", "order"),
    [
        ("compressed-tensors", "gptq", "static"),
        ("gptq", "gptq", None),
        ("gptq", "gptq", "group"),
        ("gptq", "awq", None),
        ("compressed-tensors", "awq-gptq", None),
        ("compressed-tensors", "smoothquant", None),
        ("compressed-tensors", "fp8", None),
    ],
)
@pytest.mark.parametrize("family", [*CONFIGS, *RECURRENT, *PARALLEL])
def test_every_family_hardly_moves_with_8_bits(
    family: str, format: str, method: str, order: Literal["static", "group"] | None, tmp_path: Path
) -> None:
    from headrace.bench.quality.judged import JudgedLLM
    from headrace.evaluation.documents import Document
    from headrace.evaluation.measures import divergence

    (tmp_path / "model").mkdir()
    write(tmp_path / "model", (CONFIGS | RECURRENT | PARALLEL)[family])
    options = {"format": format, "method": method, "order": order}
    group = None if method in ("smoothquant", "fp8") else 16
    report = made(str(tmp_path / "model"), tmp_path / "out", bits=8, group=group, **options)
    least = 0.04 if method == "fp8" else 0.02
    assert max(report.errors.values()) < least
    before, after = matrices(str(tmp_path / "model")), matrices(str(tmp_path / "out"))
    for name, weight in before.items() if method in ("gptq", "fp8") else ():
        assert (after[name] - weight).norm() < least * weight.norm(), name

    options = {"tokenizer": "tale", "dtype": "float32", "num_threads": 1, "show_progress": False}
    out, model = (JudgedLLM(str(tmp_path / name), options) for name in ("out", "model"))
    found = divergence(out, model, [Document(one) for one in TEXTS])
    # Of a random mixture some tokens go to another expert with any rounding: these move far.
    most = (0.01, 0.1) if group is not None else (0.15, 0.5)
    assert found.median < most[0] and found.mean < most[1], found


@pytest.mark.parametrize(
    ("tied", "rotate", "format"),
    [
        (True, False, "compressed-tensors"),
        pytest.param(False, True, "gptq", marks=pytest.mark.long),
        pytest.param(True, True, "gptq", marks=pytest.mark.long),
        pytest.param(False, False, "awq", marks=pytest.mark.long),
    ],
)
def test_the_head_becomes_codes_of_its_own(tied: bool, rotate: bool, format: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", CONFIGS["mistral"] | {"num_hidden_layers": 1, "tie_word_embeddings": tied})
    model, out = str(tmp_path / "model"), str(tmp_path / "out")
    report = made(model, Path(out), bits=4, format=format, head=True, rotate=rotate, clip=True)
    assert 0.01 < report.errors["head"] < 0.15
    assert report.weights == 64 * 2048 + sum(
        one.numel() for name, one in matrices(model).items() if name[0].isdigit()
    )
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    assert (
        "lm_head" not in json.dumps(config["quantization_config"]) or config["quantization_config"]["lm_head"]
    )
    coded = open_weights(resolve_model(out), stored_spec(resolve_model(out))).coded
    assert "lm_head.weight" in coded
    if not rotate:
        source = resolve_model(model)
        weights = load_weights(source, stored_spec(source), dtype=torch.float32)
        before = weights.tables["embed"] if tied else weights.matrices["head"].weight
        assert (matrices(out)["head"] - before).norm() < 0.15 * before.norm()
        source = resolve_model(out)
        found = load_weights(source, stored_spec(source), dtype=torch.float32)
        assert torch.equal(found.tables["embed"], weights.tables["embed"])


def test_matrices_that_were_asked_to_stay_are_not_said_to_fit_badly(tiny: str, tmp_path: Path) -> None:
    report = made(tiny, tmp_path / "out", method="rtn", texts=[], keep=("0.down",))
    assert report.kept == () and "0.down" not in report.errors and "1.down" in report.errors


@pytest.mark.parametrize(
    ("format", "tensor", "name"),
    [
        ("gptq", "model.layers.0.mlp.down_proj.weight", "0.down"),
        ("gguf:Q4_0", "model.layers.0.mlp.down_proj.weight", "0.down"),
        ("gguf:Q4_0", "model.embed_tokens.weight", "embed"),
    ],
)
def test_weights_that_are_not_numbers_are_refused(
    format: str, tensor: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", CONFIGS["mistral"] | {"num_hidden_layers": 1})
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    tensors[tensor][0, 0] = np.nan
    save_file(tensors, path, {"format": "pt"})
    words = ["--method", "rtn", "--samples", "0", "--num-threads", "1", "--format", format]
    words += [] if format.startswith("gguf") else ["--group-size", "32"]
    assert main(["quantize", str(tmp_path / "model"), "-o", str(tmp_path / "out"), *words]) == 1
    assert f"the weights of {name} are infinite or not numbers" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_what_the_kernels_map_answers_as_the_codes_do(tiny: str, tmp_path: Path) -> None:
    words = ["quantize", tiny, "--samples", "3", "--length", "24", "--group-size", "32", "--num-threads", "1"]
    words += ["--self-calibration", "--seed", "5"]
    for name, format in (("packed", "headrace"), ("codes", "compressed-tensors")):
        assert main([*words, "-o", str(tmp_path / name), "--format", format]) == 0
    assert is_packed(tmp_path / "packed") and not list(tmp_path.glob(".*"))
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    packed, codes = (
        LLM(str(tmp_path / name), num_threads=1).generate([[5, 6, 7]], params, use_tqdm=False)[0].outputs[0]
        for name in ("packed", "codes")
    )
    assert packed.token_ids == codes.token_ids
