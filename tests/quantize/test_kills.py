"""`headrace quantize`, killed again and again at random moments of its work, ends with the same bytes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.places import TALE
from tests.tiny_checkpoint import CONFIGS, write

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

KILLS = 10
FORMS = {
    "gptq": ["--method", "gptq", "--format", "gptq", "--group-size", "32", "--act-order", "--head"],
    "gguf": ["--format", "gguf:Q4_0"],
    "headrace": ["--format", "headrace", "--group-size", "32"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write(folder, CONFIGS["mistral"] | {"num_hidden_layers": 12})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE / name, folder)
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_ten_kills_change_no_byte(form: str, model: Path, tmp_path: Path) -> None:
    words = [*FORMS[form], "--samples", "24", "--length", "128", "--num-threads", "1"]
    whole, killed = tmp_path / "whole" / "out", tmp_path / "killed" / "out"
    begun = time.monotonic()
    finish(start(model, whole, words))
    took = time.monotonic() - begun
    expected = contents(whole)
    rng, kills = random.Random(form), 0
    for _ in range(10 * KILLS):
        process = start(model, killed, words)
        latest = time.monotonic() + rng.uniform(0.3, 1.0) * took
        # By its progress, or by time: whichever comes first, as this run may be a quicker one.
        layers = len(written(killed)) + rng.randrange(1, 4)
        while process.poll() is None and len(written(killed)) < layers and time.monotonic() < latest:
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.05) * took)
        if process.poll() is None:
            process.kill()
            kills += len(written(killed)) > 0
        process.communicate()
        if killed.exists():  # what has its name is whole: once more from the beginning
            assert contents(killed) == expected
            shutil.rmtree(killed)
        if kills == KILLS:
            break
    assert kills == KILLS, f"only {kills} kills came between the first layer and the end"
    finish(start(model, killed, words))
    assert contents(killed) == expected and [path.name for path in killed.parent.iterdir()] == ["out"]


def start(model: Path, out: Path, words: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", "quantize", str(model), "-o", str(out), *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def unfinished(out: Path) -> Path:
    return out.with_name(f".{out.name}.unfinished")


def written(out: Path) -> list[str]:
    """The files so far of a run that is not finished; it may rename or remove them meanwhile."""
    return [
        name for _, _, names in os.walk(unfinished(out)) for name in names if name.endswith(".safetensors")
    ]


def finish(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
