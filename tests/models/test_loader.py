"""From checkpoint tensors to the decoder's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from headrace.build import survey
from headrace.config import EngineConfig
from headrace.errors import CheckpointError
from headrace.models.families import read_spec, weight_names
from headrace.models.loader import load_weights
from headrace.models.source import resolve_model
from headrace.models.weights import Weights
from headrace.program.lower import lower

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def tensors(llama_config: dict[str, Any]) -> Tensors:
    spec = read_spec(llama_config)
    rng = torch.Generator().manual_seed(0)
    shapes = lower(spec, weight_names(spec)).tensors()
    return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def _load(folder: Path, config: dict[str, Any], tensors: Tensors, **options: Any) -> Weights:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    source = resolve_model(str(folder))
    return load_weights(source, read_spec(source.config), **{"dtype": torch.float32, **options})


def test_layout(tmp_path: Path, llama_config: dict[str, Any], tensors: Tensors) -> None:
    seen: list[tuple[int, int]] = []
    weights = _load(tmp_path, llama_config, tensors, progress=lambda done, total: seen.append((done, total)))
    prefix = "model.layers.1."
    parts = [tensors[f"{prefix}self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(weights.matrices["1.qkv"].weight, torch.cat(parts))
    gate, up = (tensors[f"{prefix}mlp.{part}_proj.weight"] for part in ("gate", "up"))
    assert torch.equal(weights.matrices["1.gate_up"].weight, torch.cat((gate, up)))
    assert torch.equal(weights.vectors["1.post_norm"], tensors[f"{prefix}post_attention_layernorm.weight"])
    assert torch.equal(weights.matrices["head"].weight, tensors["lm_head.weight"])
    assert weights.matrices["1.qkv"].bias is None and "1.query_norm" not in weights.vectors
    assert seen == [(n, len(tensors)) for n in range(1, len(tensors) + 1)]
    assert weights.formats == ("dense",)


def test_conversion(tmp_path: Path, llama_config: dict[str, Any], tensors: Tensors) -> None:
    weights = _load(tmp_path, llama_config, tensors, dtype=torch.bfloat16)
    assert torch.equal(weights.tables["embed"], tensors["model.embed_tokens.weight"].to(torch.bfloat16))
    assert weights.dtype == torch.bfloat16


@pytest.mark.parametrize("stored", [False, True])
def test_tied_head_is_the_embedding(
    tmp_path: Path, llama_config: dict[str, Any], tensors: Tensors, stored: bool
) -> None:
    if not stored:
        del tensors["lm_head.weight"]
    weights = _load(tmp_path, {**llama_config, "tie_word_embeddings": True}, tensors)
    assert weights.matrices["embed"].weight is weights.tables["embed"]


def test_unused_tensors_of_old_checkpoints_are_skipped(
    tmp_path: Path, llama_config: dict[str, Any], tensors: Tensors
) -> None:
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    _load(tmp_path, llama_config, tensors)


K_PROJ = "model.layers.1.self_attn.k_proj.weight"


def test_missing_tensor(tmp_path: Path, llama_config: dict[str, Any], tensors: Tensors) -> None:
    del tensors[K_PROJ]
    with pytest.raises(CheckpointError, match=f"lacks tensor {K_PROJ}"):
        _load(tmp_path, llama_config, tensors)


def test_missing_head_of_an_untied_model(
    tmp_path: Path, llama_config: dict[str, Any], tensors: Tensors
) -> None:
    del tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"lacks tensor lm_head\.weight"):
        _load(tmp_path, llama_config, tensors)


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight"]
)
def test_unexpected_tensor(tmp_path: Path, llama_config: dict[str, Any], tensors: Tensors, name: str) -> None:
    tensors[name] = torch.ones(16)
    with pytest.raises(CheckpointError, match=name):
        _load(tmp_path, llama_config, tensors)


def test_wrong_shape(tmp_path: Path, llama_config: dict[str, Any], tensors: Tensors) -> None:
    tensors[K_PROJ] = tensors[K_PROJ].T.contiguous()
    with pytest.raises(CheckpointError, match=rf"{K_PROJ} has shape \[16, 8\]"):
        _load(tmp_path, llama_config, tensors)


def test_wrong_dtype(tmp_path: Path, llama_config: dict[str, Any], tensors: Tensors) -> None:
    tensors[K_PROJ] = tensors[K_PROJ].to(torch.int8)
    with pytest.raises(CheckpointError, match=f"{K_PROJ} is stored as I8"):
        _load(tmp_path, llama_config, tensors)


def test_config_that_asks_for_more_than_the_file_holds(
    tmp_path: Path, llama_config: dict[str, Any], tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config of 10^12 parameters over a small file must fail before a byte of weights is allocated."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {**llama_config, "hidden_size": 131_072, "vocab_size": 1 << 22, "num_attention_heads": 1024}
        )
    )
    save_file(tensors, tmp_path / "model.safetensors")
    source = resolve_model(str(tmp_path))
    spec = read_spec(source.config)

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("allocated")

    monkeypatch.setattr(torch, "empty", never)
    with pytest.raises(CheckpointError, match="has shape"):
        load_weights(source, spec, dtype=torch.float32)


def test_files_that_do_not_fit_are_not_planned_for(
    tmp_path: Path, llama_config: dict[str, Any], tensors: Tensors
) -> None:
    """`survey` is what `inspect` prints. A folder that lacks its files can be planned for, others cannot."""
    (tmp_path / "config.json").write_text(json.dumps(llama_config))
    assert survey(EngineConfig(str(tmp_path))).ledger.weight_bytes > 0
    save_file({**tensors, K_PROJ: tensors[K_PROJ].T.contiguous()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{K_PROJ} has shape \[16, 8\]"):
        survey(EngineConfig(str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(CheckpointError, match=r"^model\.safetensors "):
        survey(EngineConfig(str(tmp_path)))
