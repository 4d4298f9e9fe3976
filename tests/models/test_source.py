"""Finding a model by name, without a network. Names of the hub are in hub/test_fetch.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import CheckpointError, ModelNotFound, UnsupportedModel
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.source import BUNDLED, name_of, resolve_model


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled(name: str) -> None:
    source = resolve_model(name)
    assert source.kind == "bundled" and source.path is not None
    assert (source.path / "model.safetensors").is_file()


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 5}')
    source = resolve_model(str(tmp_path))
    assert (source.kind, source.path, source.config) == ("folder", tmp_path, {"model_type": "llama"})
    assert source.generation_config == {"eos_token_id": 5}


def test_the_name_of_a_folder_stands_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tale", "shape:tinyllama-1.1b", "~root", "-m", "org/model", str(tmp_path / "absolute")):
        folder = Path(name)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"model_type": "llama"}')
        found = resolve_model(name_of(folder))
        assert found.path is not None and found.path.resolve() == tmp_path / folder
        assert not name_of(folder).startswith("-")


def test_shape() -> None:
    source = resolve_model("shape:tinyllama-1.1b")
    assert (source.kind, source.path, source.config["hidden_size"]) == ("shape", None, 2048)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "tale2",
        "a/b/c",
        "../no",
        "/no/such/folder",
        "a b/c",
        "-x/y",
        "x/..",
        "\0",
        "x" * 5000,
        "~nobody-here/x",
    ],
)
def test_unknown_names(name: str) -> None:
    with pytest.raises(ModelNotFound, match="tale, tale-draft"):
        resolve_model(name)


def test_unknown_shape() -> None:
    with pytest.raises(ModelNotFound, match=r"there are: .*llama-3\.2-1b"):
        resolve_model("shape:llama-9")
    for begun, first in (
        ("qwen3-30b", "qwen3-30b-a3b, qwen3-30b-a3b-8l"),
        ("gpt-os", "gpt-oss-20b"),
        ("", "tiny"),
    ):
        with pytest.raises(ModelNotFound, match=f"some that there are: {first}"):
            resolve_model(f"shape:{begun}")


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model-Q4_0.gguf"
    with pytest.raises(ModelNotFound, match=r"there is no file .*model-Q4_0\.gguf"):
        resolve_model(str(path))
    path.touch()
    with pytest.raises(CheckpointError, match=r"model-Q4_0\.gguf has 0 bytes, too few for a GGUF file"):
        resolve_model(str(path))


def test_a_gguf_file_of_any_name(tmp_path: Path) -> None:
    """As in the cache of Ollama, where names are digests."""
    path = tmp_path / "sha256-0123"
    path.write_bytes(b"GGUF" + (9).to_bytes(4, "little") + bytes(16))
    with pytest.raises(UnsupportedModel, match="sha256-0123 has GGUF version 9"):
        resolve_model(str(path))
    path.write_bytes(b"GG")
    with pytest.raises(UnsupportedModel, match="sha256-0123 is a file; give a GGUF file"):
        resolve_model(str(path))


ADAPTER = '{"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.1-8B"}'


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"model-Q4_K_M.gguf": ""}, r"model-Q4_K_M.gguf has 0 bytes, too few for a GGUF file"),
        ({"adapter_config.json": ADAPTER}, r"\(LoRA\) for 'meta-llama/Llama-3.1-8B', .*merge_and_unload\(\)"),
        ({"adapter_config.json": "{}"}, r"it is an adapter \(LoRA\), which needs its base model"),
        ({"pytorch_model.bin": ""}, r"pickled \(pytorch_model.bin\).*\.save_pretrained\('"),
        ({"training_args.bin": ""}, "holds no config.json: give the folder that holds a model's config.json"),
    ],
)
def test_a_folder_that_is_not_a_model_is_described(tmp_path: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=said):
        resolve_model(str(tmp_path))


def test_pickled_weights_beside_a_config(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model-00001-of-00002.bin").touch()
    with pytest.raises(CheckpointError, match=r"neither model.safetensors nor .*: its weights are pickled"):
        Checkpoint(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(UnsupportedModel, match="is a file"):
        resolve_model(str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "holds no config.json"),
        ("{", "no valid JSON"),
        ("[]", "JSON object"),
        ("[" * 200_000, "no valid JSON"),
    ],
)
def test_bad_config(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=words):
        resolve_model(str(tmp_path))


def test_oversized_config(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 30)  # sparse
    with pytest.raises(CheckpointError, match="larger than"):
        resolve_model(str(tmp_path))
