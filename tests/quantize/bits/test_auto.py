"""Bits and groups within a budget: the folder has the size that was promised, each matrix what was chosen for it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from headrace.cli import main
from headrace.errors import HeadraceError
from headrace.models.config_reader import ConfigReader
from headrace.models.quantized.methods import read_method
from headrace.models.source import resolve_model
from headrace.models.stored import stored_spec
from headrace.quantize.bits.auto import width_table
from headrace.quantize.bits.budget import Budget
from headrace.quantize.options import QuantizeOptions, Width
from headrace.quantize.run import quantize
from tests.places import TALE
from tests.tiny_checkpoint import CONFIGS, write

TEXTS = [tuple((7 * text + 3 * at * at) % 512 for at in range(40 + text)) for text in range(2)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    write(folder, CONFIGS["mistral"] | {"num_hidden_layers": 3})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE / name, folder)
    return str(folder)


@pytest.mark.parametrize("format", ["compressed-tensors", pytest.param("gptq", marks=pytest.mark.long)])
def test_matrices_have_the_bits_that_fill_the_budget(format: str, tiny: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    source = resolve_model(tiny)
    spec = stored_spec(source)
    options = QuantizeOptions("awq-gptq", format=format, group=32)
    table, widths = width_table(source, spec, options, TEXTS, (16, 32))
    for name, row in table.rows.items():
        loss = {widths[one.name]: one.loss for one in row}
        assert 0 < loss[Width(8, 32)] < loss[Width(4, 16)] < loss[Width(3, 32)] < loss[Width(2, 32)], name
    clipped, _ = width_table(source, spec, replace(options, clip=True), TEXTS, (16, 32))
    assert clipped.rows == table.rows
    chosen = tuple((name, widths[one]) for name, one in table.choose(Budget(bits=5.0)))
    assert len({width.bits for _, width in chosen}) > 1
    report = quantize(source, spec, replace(options, widths=chosen), TEXTS, tmp_path / "out")
    assert 4.5 < report.bits <= 5.0
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    method = read_method(config["quant_method"], ConfigReader(config))
    for name, width in chosen:
        layer, matrix = name.split(".")
        module = {
            "qkv": "self_attn.k_proj", "out": "self_attn.o_proj", "gate_up": "mlp.up_proj", "down": "mlp.down_proj"
        }[matrix]  # fmt: skip
        layout = method.layout(f"model.layers.{layer}.{module}")
        assert (layout.bits, layout.group) == (width.bits, width.group), name  # type: ignore[union-attr]
    files = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert table.whole is not None and table.whole(table.choose(Budget(bits=5.0))) == files
    asked = files - 5_000
    sized = table.choose(Budget(size=asked))
    assert asked - 2_000 < table.whole(sized) <= asked
    quantize(
        source, spec, replace(options, widths=tuple((name, widths[one]) for name, one in sized)), TEXTS,
        tmp_path / "sized",
    )  # fmt: skip
    assert sum(path.stat().st_size for path in (tmp_path / "sized").iterdir()) == table.whole(sized)
    with pytest.raises(HeadraceError, match="bytes in all: give more") as refused:
        table.choose(Budget(size=table.rest))
    least = int(str(refused.value).split(" bytes in all")[0].split()[-1].replace(",", ""))
    assert table.choose(Budget(size=least)) and table.rest < least < asked


def test_what_cannot_be_mixed_is_refused(tiny: str, tmp_path: Path) -> None:
    widths = (("0.qkv", Width(3, 32)), ("0.down", Width(4, 16)))
    for options, text in (
        (QuantizeOptions("smoothquant", 8, None, widths=widths), "smoothquant gives all matrices 8 bits"),
        (QuantizeOptions("rtn", format="awq", widths=widths), "awq holds 4 bits, not 3"),
        (QuantizeOptions("rtn", widths=(("0.qkv", Width(4, 8)),)), "must be 16 to 256"),
    ):
        with pytest.raises(HeadraceError, match=text):
            options.check()
    source = resolve_model(tiny)
    with pytest.raises(HeadraceError, match="its sizes do not fit"):
        width_table(source, stored_spec(source), QuantizeOptions(), TEXTS, (80,))


def test_the_command_says_what_it_chose(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "quantize",
        tiny,
        "-o",
        str(tmp_path / "out"),
        "--samples",
        "2",
        "--length",
        "32",
        "--num-threads",
        "1",
    ]
    assert main([*words, "--method", "auto", "--bits-per-weight", "4.9", "--group-size", "32"]) == 0
    said = capsys.readouterr().out
    assert "matrices: " in said and "bits, groups of 32" in said
    groups = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"][
        "config_groups"
    ]
    assert len(groups) > 1 and all(one["weights"]["group_size"] == 32 for one in groups.values())


@pytest.mark.parametrize(
    ("value", "text"),
    [(np.inf, "the weights of 0.down are infinite"), (1e30, "with 0.down rounded the model gives infinite")],
)
@pytest.mark.parametrize("format", ["gptq", "gguf:auto"])
def test_what_cannot_be_measured_is_refused(
    value: float, text: str, format: str, tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny, tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"][:4] = value
    save_file(tensors, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    words = [
        "quantize",
        str(tmp_path / "model"),
        "--method",
        "auto",
        "--format",
        format,
        "--bits-per-weight",
        "5",
    ]
    words += ["--samples", "2", "--length", "24", "--num-threads", "1", "-o", str(tmp_path / "out")]
    assert main(words) == 1
    said = " ".join(capsys.readouterr().err.split()).replace("blk.0.ffn_down.weight", "0.down")
    assert text in said
    assert [one.name for one in tmp_path.iterdir()] == ["model"]
