"""A model folder that would like to run code: nothing of it runs, wherever it is loaded, served or chatted with."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace

TALE = Path(headrace.__file__).parent / "bundled" / "tale"
SECONDS = 20

PROGRAM = """\
import sys
from headrace import LLM, HeadraceError, SamplingParams
try:
    llm = LLM(sys.argv[1], show_progress=False)
except HeadraceError as error:
    print("refused:", error)
    sys.exit(3)
params = SamplingParams(max_tokens=2, temperature=0.0)
print("text:", llm.generate(["Once"], params, use_tqdm=False)[0].outputs[0].text)
try:
    llm.chat([{"role": "user", "content": "Hello"}], params, use_tqdm=False)
    print("chat: answered")
except HeadraceError as error:
    print("chat refused:", error)
"""


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return (os.system, (f"touch {self.canary}",))


def code(canary: Path) -> str:
    return f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n"


def edit(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "model"
    shutil.copytree(TALE, target)
    return target


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def load(folder: Path) -> subprocess.CompletedProcess[str]:
    """Load, generate and chat, started inside the folder, where a careless import would find its modules."""
    result = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(folder)],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in result.stderr, result.stderr
    return result


def test_the_canary_works(canary: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(canary)))
    assert canary.exists()


def test_code_in_the_models_folder_is_not_imported(folder: Path, canary: Path) -> None:
    auto_map = {"AutoModelForCausalLM": "modeling_tale.Tale", "AutoConfig": "configuration_tale.Config"}
    edit(folder / "config.json", auto_map=auto_map)
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_tale.Tokenizer", None]})
    for name in (
        "modeling_tale",
        "configuration_tale",
        "tokenization_tale",
        "sitecustomize",
        "numpy",
        "json",
    ):
        (folder / f"{name}.py").write_text(code(canary))
    result = load(folder)
    assert result.returncode == 0 and "chat: answered" in result.stdout, result.stdout + result.stderr
    assert not canary.exists()


def test_pickled_weights_next_to_safetensors_are_not_read(folder: Path, canary: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    (folder / "training_args.bin").write_bytes(pickle.dumps(Bomb(canary)))
    assert load(folder).returncode == 0
    assert not canary.exists()


def test_pickled_weights_alone_are_refused(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    result = load(folder)
    assert result.returncode == 3 and "safetensors" in result.stdout
    assert not canary.exists()


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}",
    "{{ lipsum.__globals__['os'].system('touch CANARY') }}",
    "{{ self.__init__.__globals__.__builtins__.open('CANARY', 'w') }}",
    "{% for x in range(10**9) %}{% for y in range(10**9) %}{% endfor %}{% endfor %}",
    "{% set x = 'a' * 10**10 %}{{ x }}",
    "{{ 10 ** 10 ** 10 }}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{% include '/etc/passwd' %}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_hostile_template_only_fails(folder: Path, canary: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template.replace("CANARY", str(canary)))
    result = load(folder)
    assert result.returncode == 0, result.stdout + result.stderr  # completions work without chats
    assert "text:" in result.stdout
    if "chat: answered" in result.stdout:
        # What jinja's sandbox calls undefined is the empty text: nothing has run.
        assert "root:" not in result.stdout
    assert not canary.exists()


ABSURD: dict[str, dict[str, object]] = {
    "a thousand million layers": {"num_hidden_layers": 10**9},
    "no layers": {"num_hidden_layers": 0},
    "text for a size": {"hidden_size": "2048; touch canary"},
    "a list for a size": {"hidden_size": [2048]},
    "half a head": {"num_attention_heads": 3},
    "more KV heads than heads": {"num_key_value_heads": 10**6},
    "a huge vocabulary": {"vocab_size": 2**40},
    "a context of 2**60": {"max_position_embeddings": 2**60, "hidden_size": 2**30},
    "NaN for a norm": {"rms_norm_eps": float("nan")},
    "another rope": {"rope_scaling": {"rope_type": "__import__('os')"}},
    "a nested family": {"model_type": {"llama": 1}, "architectures": [["LlamaForCausalLM"]]},
}


@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_configuration_is_refused(folder: Path, name: str) -> None:
    edit(folder / "config.json", **ABSURD[name])
    result = load(folder)
    assert result.returncode == 3, result.stdout + result.stderr
    assert result.stdout.startswith("refused:") and str(folder.parent.parent) not in result.stderr


def test_devices_and_pipes_in_the_folder_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")
    assert load(folder).returncode == 3
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")  # reading it would wait for ever
    assert load(folder).returncode == 3
