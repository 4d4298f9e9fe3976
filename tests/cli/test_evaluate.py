"""`headrace eval`: figures that follow from the model, and one sentence where nothing can be measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import LLM
from headrace.cli import main
from headrace.models.source import BUNDLED_FOLDER
from tests import needs
from tests.models.hub import server

FEW = ["--tokens", "300", "--num-threads", "1", "--max-model-len", "256"]
TEXT = (
    "Once upon a time there was a fox who wanted a boat. The fox asked the hen, and the hen had one.\n\n" * 3
)


@pytest.fixture
def texts(tmp_path: Path) -> str:
    (tmp_path / "texts.txt").write_text(TEXT)
    return str(tmp_path / "texts.txt")


def measured(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["eval", *words, "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_perplexity_is_that_of_the_prompt_log_probabilities(
    texts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace import SamplingParams

    found = measured(["perplexity", "tale", "--data", texts, *FEW], capsys)
    llm = LLM("tale", num_threads=1, max_model_len=256, show_progress=False)
    (output,) = llm.generate(TEXT.strip().split("\n\n")[0], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert output.prompt_logprobs is not None
    losses = [-next(iter(one.values())).logprob for one in output.prompt_logprobs[1:] if one is not None]
    assert found["tokens"] == 3 * len(losses)
    assert found["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)


def test_a_quantised_model_beside_its_checkpoint(texts: str, capsys: pytest.CaptureFixture[str]) -> None:
    needs.native()
    far = measured(["kl", "tale", "--quantization", "int4", "--data", texts, *FEW], capsys)
    near = measured(["kl", "tale", "--quantization", "int8", "--data", texts, *FEW], capsys)
    assert 0 < near["mean"] < far["mean"] and near["top_1"] > 0.9
    assert near["model"] == near["reference"] == "tale"
    assert near["perplexity_increase"] == pytest.approx(
        near["model_perplexity"] / near["reference_perplexity"] - 1
    )


def test_drafts_change_no_answer(texts: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "agreement",
        "tale",
        "--speculative",
        "ngram",
        "--data",
        texts,
        "--answers",
        "3",
        "--answer-tokens",
        "20",
    ]
    found = measured([*words, *FEW], capsys)
    assert (found["equal"], found["prefix"], found["answers"]) == (1.0, 1.0, 3)


def test_a_table_and_a_file(texts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    words = ["kl", "tale-draft", "--reference", "tale", "--data", texts, "--json", str(file)]
    assert main(["eval", *words, *FEW]) == 0
    printed = capsys.readouterr().out
    assert "KL divergence, mean" in printed and "the same likeliest token" in printed
    assert json.loads(file.read_text())["reference"] == "tale"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["kl", "tale"], "tale would be compared with itself: name another model with --reference"),
        (["perplexity", "tale", "--reference", "tale-draft"], "perplexity is of one model"),
        (["perplexity", "shape:tiny"], "shape:tiny has random weights: there is nothing to measure"),
        (["kl", "tale", "--reference", "shape:tiny"], "shape:tiny has random weights"),
        (["perplexity", "tale", "--data", "/nowhere/a.txt"], "cannot read /nowhere/a.txt: No such file"),
        (["perplexity", "tale", "--json", "/no/such/x"], "the result cannot be written to /no/such/x: there is no"),
        (["perplexity", "tale", "--tokens", "0"], "tokens must be"),
        (["agreement", "tale", "--speculative", "ngram", "--answer-tokens", "5000"], "leave no room for a prompt"),
    ],
)  # fmt: skip
def test_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *words, "--num-threads", "1"]) == 1
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_texts_without_a_token_to_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text("\n\n \n")
    assert (
        main(["eval", "perplexity", "tale", "--data", str(tmp_path / "empty.txt"), "--num-threads", "1"]) == 1
    )
    assert "empty.txt holds no text" in capsys.readouterr().err


def test_a_reference_of_the_hub_lies_in_the_folder_that_was_named(
    texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {path.name: path.read_bytes() for path in (BUNDLED_FOLDER / "tale-draft").iterdir()}
    with server.running() as hub:
        hub.repositories = {"org/draft": server.Repository(files)}
        server.environment(monkeypatch, hub, str(tmp_path / "cache"))
        words = ["kl", "tale-draft", "--reference", "org/draft", "--download-dir", str(tmp_path / "models")]
        assert measured([*words, "--data", texts, *FEW], capsys)["mean"] == 0.0
    assert (tmp_path / "models").is_dir() and not (tmp_path / "cache").exists()
