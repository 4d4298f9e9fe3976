"""Finding a model by name, without a network."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from headrace.errors import CheckpointError, ModelNotFound, UnsupportedModel
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.source import BUNDLED, resolve_model


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
    with pytest.raises(ModelNotFound, match=r"known are tiny, tinyllama-1\.1b"):
        resolve_model("shape:llama-9")


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model-Q4_0.gguf"
    with pytest.raises(ModelNotFound, match=r"there is no file .*model-Q4_0\.gguf"):
        resolve_model(str(path))
    path.touch()
    with pytest.raises(CheckpointError, match=r"model-Q4_0\.gguf has 0 bytes, too few for a GGUF file"):
        resolve_model(str(path))


ADAPTER = '{"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.1-8B"}'


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"model-Q4_K_M.gguf": ""}, r"model-Q4_K_M.gguf has 0 bytes, too few for a GGUF file"),
        ({"adapter_config.json": ADAPTER}, r"\(LoRA\) for 'meta-llama/Llama-3.1-8B', .*merge_and_unload\(\)"),
        ({"adapter_config.json": "{}"}, r"it is an adapter \(LoRA\), which needs its base model"),
        ({"pytorch_model.bin": ""}, r"pickled \(pytorch_model.bin\).*\.save_pretrained\('"),
        ({"training_args.bin": ""}, "holds no config.json$"),
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


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache as huggingface_hub lays it out, holding org/known, and no network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    model = tmp_path / "models--org--known"
    snapshot = model / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(commit)
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def test_hub_model_in_the_cache(hub_cache: Path) -> None:
    source = resolve_model("org/known")
    assert source.kind == "hub" and source.name == "org/known"
    assert source.path is not None and source.path.is_relative_to(hub_cache)
    assert source.config == {"model_type": "llama"}


def test_hub_model_not_in_the_cache(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: tried.append(args) or [])
    monkeypatch.setattr(socket.socket, "connect", lambda *args: tried.append(args))
    with pytest.raises(ModelNotFound, match="not in the local cache and HF_HUB_OFFLINE is set"):
        resolve_model("org/unknown")
    assert tried == []  # the network is left alone


def test_hub_cache_from_hf_home(hub_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "hub").symlink_to(hub_cache)
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(home))
    assert resolve_model("org/known").config == {"model_type": "llama"}


_ANSWER = httpx.Response(404, request=httpx.Request("GET", "https://hub.invalid"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (GatedRepoError("no", response=_ANSWER), "accept its terms"),
        (RepositoryNotFoundError("no", response=_ANSWER), "no public hub model org/known"),
        (LocalEntryNotFoundError("no"), "the hub cannot be reached"),
        (httpx.ReadTimeout("timed out\nafter long"), "cannot be fetched: timed out$"),
        (httpx.ConnectError(""), "cannot be fetched: ConnectError$"),
    ],
)
def test_hub_errors_name_the_remedy(error: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def fail(repository: str, **options: Any) -> str:
        asked.update(options)
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(ModelNotFound, match=words):
        resolve_model("org/known")
    assert not asked["local_files_only"]
    assert not {"*.bin", "*.pt", "*.py", "*"} & set(asked["allow_patterns"])


def test_weights_are_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repositories such as Mistral's hold a second copy of all weights, as large as the first."""
    asked: dict[str, Any] = {}

    def fail(repository: str, **options: Any) -> str:
        asked.update(options)
        raise LocalEntryNotFoundError("no")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelNotFound):
        resolve_model("org/known")
    expected = [
        "config.json", "generation_config.json", "tokenizer.json", "model.safetensors.index.json",
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "chat_template.jinja",
    ]  # fmt: skip
    others = [
        "consolidated.safetensors", "consolidated-00001-of-00002.safetensors", "original/consolidated.00.pth",
        "original/params.json", "nested/consolidated.safetensors", "pytorch_model.bin", "modeling.py",
    ]  # fmt: skip
    rules = {name: asked.get(name) for name in ("allow_patterns", "ignore_patterns")}
    assert list(huggingface_hub.utils.filter_repo_objects([*expected, *others], **rules)) == expected
