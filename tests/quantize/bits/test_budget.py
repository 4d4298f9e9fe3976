"""Bits within a budget: the allocation is the best there is, and what is measured of each matrix is what it costs."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch

from headrace.cli import main
from headrace.errors import ConfigError, HeadraceError
from headrace.gguf.files import GGUFModel
from headrace.models.source import resolve_model
from headrace.models.stored import stored_spec
from headrace.quantize.bits.budget import Budget, Choice, allocate
from headrace.quantize.gguf.auto import type_table
from headrace.quantize.gguf.run import GGUFOptions, quantize_gguf
from tests.tiny_checkpoint import CONFIGS, write

TEXTS = [tuple((7 * text + 3 * at * at) % 2000 for at in range(40 + text)) for text in range(4)]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_choice_within_the_budget_is_better(seed: int) -> None:
    rng = random.Random(seed)
    table = [
        [Choice(str(at), rng.randint(1, 12), rng.random()) for at in range(rng.randint(1, 4))]
        for _ in range(5)
    ]
    budget = rng.randint(sum(min(one.size for one in row) for row in table), 50)
    found = allocate(table, budget)
    assert all(one in row for one, row in zip(found, table, strict=True))
    assert sum(one.size for one in found) <= budget
    best = min(
        sum(one.loss for one in every)
        for every in itertools.product(*table)
        if sum(one.size for one in every) <= budget
    )
    assert sum(one.loss for one in found) == pytest.approx(best)


def test_a_budget_below_the_smallest_choices_is_refused() -> None:
    with pytest.raises(ConfigError, match="need 5 bytes"):
        allocate([[Choice("a", 2, 0.0), Choice("b", 9, 0.0)], [Choice("a", 3, 0.0)]], 4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    write(folder, CONFIGS["mistral"] | {"num_hidden_layers": 2, "vocab_size": 512, "intermediate_size": 64})
    return str(folder)


@pytest.mark.parametrize("given", [1, pytest.param(4, marks=pytest.mark.long)])
def test_types_fill_the_budget_and_the_model_is_the_same_after_it(
    given: int, tiny: str, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    source = resolve_model(tiny)
    spec = stored_spec(source)
    texts = [tuple(token % 512 for token in one) for one in TEXTS[:given]]
    table = type_table(source, spec, GGUFOptions("AUTO"), texts)
    for name, row in table.rows.items():
        loss = {one.name: one.loss for one in row}
        assert 0 < loss["Q8_0"] < loss["Q5_0"] < 1.01 * loss["IQ4_NL"], name
    types = dict(table.choose(Budget(bits=5.5)))
    assert len(types) == 14 and len({*types.values()}) > 1
    report = quantize_gguf(
        source, spec, GGUFOptions("AUTO", types=tuple(types.items())), texts, tmp_path / "out"
    )
    assert 5.0 < report.bits <= 5.5
    opened = GGUFModel(next((tmp_path / "out").iterdir()))
    assert all((info := opened.tensor(name)) and info.type.name == type for name, type in types.items())
    with pytest.raises(HeadraceError, match=r"the smallest choices need 4\.50 bits a weight"):
        table.choose(Budget(bits=4.4))
    if given > 1:
        whole = table.choose(Budget(size=table.rest + 100_000))
        assert table.rest < quantize_gguf(
            source, spec, GGUFOptions("AUTO", types=whole), texts, tmp_path / "sized"
        ).size <= table.rest + 100_000  # fmt: skip


def test_matrices_whose_rows_no_block_fills_stay_floats(tmp_path: Path) -> None:
    write(tmp_path, CONFIGS["mistral"] | {"num_hidden_layers": 1, "vocab_size": 512, "intermediate_size": 72})
    source = resolve_model(str(tmp_path))
    texts = [tuple(token % 512 for token in one) for one in TEXTS]
    table = type_table(source, stored_spec(source), GGUFOptions("AUTO"), texts, num_threads=1)
    assert "blk.0.ffn_up.weight" in table.rows and "blk.0.ffn_down.weight" not in table.rows
    assert len(table.choose(Budget(bits=5.5))) == 6


def test_auto_needs_one_budget_and_its_format(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, text in (
        (["--format", "gguf:auto"], "is for --method auto"),
        (["--method", "auto", "--format", "gguf:Q4_0", "--size", "1GiB"], "writes no other GGUF files"),
        (
            ["--method", "auto", "--format", "awq", "--size", "1GiB"],
            "writes --format compressed-tensors, gptq and",
        ),
        (
            ["--method", "auto", "--size", "1GiB", "--bits", "4"],
            "--bits does not go with --method auto, which gives matrices their bits: leave it out",
        ),
        (["--method", "auto", "--size", "1GiB", "--samples", "0"], "needs calibration texts"),
        (["--method", "auto", "--format", "gguf:auto"], "needs one of --bits-per-weight and --size"),
        (["--bits-per-weight", "4"], "are for --method auto"),
        (["--format", "gguf:Q4_0", "--size", "1GiB"], "are for --method auto"),
        (["--method", "auto", "--format", "gguf:auto", "--bits-per-weight", "99"], "between 1"),
    ):
        assert main(["quantize", tiny, "-o", str(tmp_path / "new"), *words]) == 1
        assert text in " ".join(capsys.readouterr().err.split()), words
