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
from headrace.errors import TokenizerError
from headrace.text.tokenizer import Tokenizer

TALE = Path(headrace.__file__).parent / "bundled" / "tale"
SECONDS = 20

PROGRAM = """\
import os, sys
from headrace import LLM, HeadraceError, SamplingParams

def use(folder):
    try:
        llm = LLM(folder, show_progress=False)
    except HeadraceError as error:
        print("refused:", error)
        return
    params = SamplingParams(max_tokens=2, temperature=0.0)
    print("text:", llm.generate(["Once"], params, use_tqdm=False)[0].outputs[0].text)
    try:
        llm.chat([{"role": "user", "content": "Hello"}], params, use_tqdm=False)
        print("chat: answered")
    except HeadraceError as error:
        print("chat refused:", error)

for folder in sys.argv[1:]:
    os.chdir(folder)
    print("folder:", folder)
    use(folder)
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


def load(*folders: Path) -> dict[Path, str]:
    """Load, generate and chat, inside each folder, where a careless import would find its modules: what was printed."""
    result = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, *map(str, folders)],
        cwd=folders[0], capture_output=True, text=True, timeout=60 + SECONDS * len(folders), check=False,
    )  # fmt: skip
    assert result.returncode == 0 and "Traceback" not in result.stderr, result.stdout + result.stderr
    assert str(folders[0].parent.parent) not in result.stderr
    first, *printed = result.stdout.split("folder: ")
    assert first == ""
    return {Path(folder): text for folder, _, text in (part.partition("\n") for part in printed)}


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
    assert "chat: answered" in load(folder)[folder]
    assert not canary.exists()


def test_pickled_weights_next_to_safetensors_are_not_read(folder: Path, canary: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    (folder / "training_args.bin").write_bytes(pickle.dumps(Bomb(canary)))
    assert load(folder)[folder].startswith("text:")
    assert not canary.exists()


def test_pickled_weights_alone_are_refused(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    said = load(folder)[folder]
    assert said.startswith("refused:") and "safetensors" in said
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


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """By template: where its canary would be, and what was printed. One process takes all of them."""
    folders = {}
    for template in ESCAPES:
        folder = tmp_path_factory.mktemp("template") / "model"
        shutil.copytree(TALE, folder)
        folders[template] = folder
        text = template.replace("CANARY", str(folder.parent / "canary"))
        (folder / "chat_template.jinja").write_text(text)
    printed = load(*folders.values())
    return {template: (folder.parent / "canary", printed[folder]) for template, folder in folders.items()}


@pytest.mark.parametrize("template", ESCAPES)
def test_a_hostile_template_only_fails(answers: dict[str, tuple[Path, str]], template: str) -> None:
    canary, said = answers[template]
    assert said.startswith("text:")  # completions work without chats
    if "chat: answered" in said:
        # What jinja's sandbox calls undefined is the empty text: nothing has run.
        assert "root:" not in said
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


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What was printed, by name of the configuration. One process takes all of them."""
    folders = {}
    for name, values in ABSURD.items():
        folders[name] = tmp_path_factory.mktemp("absurd") / "model"
        shutil.copytree(TALE, folders[name])
        edit(folders[name] / "config.json", **values)
    printed = load(*folders.values())
    return {name: printed[folder] for name, folder in folders.items()}


@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_configuration_is_refused(refusals: dict[str, str], name: str) -> None:
    assert refusals[name].startswith("refused:")


def test_devices_and_pipes_in_the_folder_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    (folder / "model.safetensors").symlink_to("/dev/zero")
    (other / "config.json").unlink()
    os.mkfifo(other / "config.json")  # reading it would wait for ever
    assert all(said.startswith("refused:") for said in load(folder, other).values())


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "generation_config.json",
        "chat_template.jinja",
        "chat_template.json",
        "additional_chat_templates/tool.jinja",
    ],
)
def test_a_pipe_in_the_place_of_a_tokenizers_file_is_refused(folder: Path, name: str) -> None:
    """To open it would wait for who writes to it."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)  # in its place chat_template.json is read
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(TokenizerError, match=f"^{Path(name).name} cannot be read: it is not a regular file"):
        Tokenizer.from_folder(folder)
