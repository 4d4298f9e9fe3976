"""`headrace train-heads`: a folder that the loader reads, figures, and one sentence where it cannot be made."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.errors import ConfigError, HeadraceError
from headrace.models.source import resolve_model
from headrace.models.stored import open_source, stored_spec
from headrace.speculative.base_model import base_model
from headrace.speculative.heads import EagleHeads, MedusaHeads, load_heads
from tests.places import BUNDLED, TALE
from tests.tiny_checkpoint import CONFIGS, write
from tests.waiting import until

TEXTS = "\n\n".join(f"Once upon a time there was a fox who had {number} friends." for number in range(80))
SMALL = ["--epochs", "1", "--num-threads", "1", "--max-model-len", "128"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    write(folder, CONFIGS["mistral"])
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TALE / name, folder)
    return str(folder)


@pytest.fixture
def texts(tmp_path: Path) -> str:
    (tmp_path / "texts.txt").write_text(TEXTS)
    return str(tmp_path / "texts.txt")


def loaded(model: str, folder: Path) -> MedusaHeads | EagleHeads:
    source = open_source(resolve_model(model))
    return load_heads(folder, base_model(source, stored_spec(source)))


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_heads_of_given_texts(
    method: str, tiny: str, texts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "heads"
    words = ["train-heads", "--method", method, tiny, "--data", texts, "-o", str(out), *SMALL]
    assert main([*words, "--heads", "2", "--tree-nodes", "5"]) == 0
    printed = capsys.readouterr().out
    assert "top 1" in printed and f"{out}: " in printed
    heads = loaded(tiny, out)
    if isinstance(heads, MedusaHeads):
        assert len(heads.blocks) == len(heads.accuracy) == 2 and heads.heads == (None, None)
        assert len(heads.tree) == len(heads.shares) <= 5
    else:
        assert heads.layer.num_attention_heads == 4 and len(heads.accuracy) == 5
    section = json.loads((out / "config.json").read_text())["headrace_heads"]
    assert section["training"]["text"] == "given" and section["training"]["heldout_tokens"] > 50
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heads", "texts.txt"]
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1  # a server of another user reads both
    with pytest.raises(ConfigError, match="has hidden_size 64; tale has 256"):
        loaded("tale", out)


@pytest.mark.long
def test_heads_of_what_the_model_writes_are_the_same_each_time(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        '{"messages": [{"role": "user", "content": "Tell me about a fox."}]}\n{"text": "Once upon a time."}\n'
    )
    made = []
    for name in ("a", "b"):
        words = [
            "train-heads",
            "--method",
            "medusa",
            "tale",
            "--prompts",
            str(prompts),
            "-o",
            str(tmp_path / name),
        ]
        assert main([*words, "--tokens", "2000", *SMALL]) == 0
        made.append([(tmp_path / name / file).read_bytes() for file in ("config.json", "model.safetensors")])
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tale", "--data", "{few}"], "gives .* tokens to train on, but 1000 are needed"),
        (["tale", "--data", "{empty}"], "holds no text"),
        (["tale", "--data", "{short}", "--heads", "16"], "at least 18 tokens.* fewer --heads"),
        (["tale", "--data", "{short}", "--method", "eagle"], "at least 6 tokens; give longer ones$"),
        (["tale", "--data", "{here}/none.txt"], "cannot read"),
        (["tale", "--data", "{few}", "--prompts", "{few}"], "--prompts is for --data self"),
        (["tale", "--heads", "99"], "--heads must be between 1 and 16"),
        (["tale", "--data", "{few}", "--tokens", "0"], "--tokens must be between"),
        (["shape:llama-3.1-8b", "--data", "{few}"], "random weights: there is nothing to train"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("Once upon a time.")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "short.jsonl").write_text('{"text": "A fox."}\n' * 500)
    places = {
        "short": tmp_path / "short.jsonl",
        "few": tmp_path / "few.txt",
        "empty": tmp_path / "empty.jsonl",
        "here": tmp_path,
    }
    given = [word.format(**places) for word in words]
    with pytest.raises(HeadraceError, match=said) as error:
        _run(["--method", "medusa", *given, "-o", str(tmp_path / "heads"), "--num-threads", "1"])
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.jsonl", "few.txt", "short.jsonl"]


def _run(words: list[str]) -> None:
    """As `main` does, but errors are raised and not printed."""
    import argparse

    from headrace.cli.models import train_heads

    parser = argparse.ArgumentParser()
    train_heads.add_parser(parser.add_subparsers(dest="command"))
    train_heads.run(parser.parse_args(["train-heads", *words]))


def test_a_folder_that_is_there_is_not_overwritten(texts: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is there already"):
        _run(
            ["--method", "eagle", "tale", "--data", texts, "-o", str(BUNDLED / "tale"), "--num-threads", "1"]
        )


@pytest.mark.long
def test_ctrl_c_leaves_nothing_and_the_next_run_clears_what_a_kill_left(texts: str, tmp_path: Path) -> None:
    out = tmp_path / "heads"
    words = [sys.executable, "-m", "headrace", "train-heads", "--method", "eagle", "tale", "--data", texts]
    for number in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(
            [*words, "-o", str(out), "--epochs", "1000", "--num-threads", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        partial = f".heads.{process.pid}.partial"
        until(lambda name=partial: (tmp_path / name).is_dir())
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode != 0 and not out.exists()
        if number == signal.SIGINT:
            assert "Traceback" not in said
            assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]
        else:
            assert (tmp_path / partial).is_dir()
