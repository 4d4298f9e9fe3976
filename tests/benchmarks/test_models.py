"""The files that engines are given hold the same weights, and our own loader reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.peers.gguf_layout import gguf_name, read_bfloat16, rotated_rows
from benchmarks.peers.models import MODELS, config_of, is_written, random_tensors, spec_of, write_folder
from benchmarks.peers.vocabulary import pairs, tokens
from headrace import LLM, SamplingParams
from headrace.models.families import read_spec, weight_names
from headrace.models.loader import load_weights
from headrace.models.source import resolve_model
from headrace.program.lower import lower


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return {**config_of("tiny"), "vocab_size": 400}


@pytest.fixture(scope="module")
def folder(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    assert not is_written(path, config)
    write_folder(path, config)
    assert is_written(path, config)
    assert not is_written(path, {**config, "vocab_size": 401})
    return path


def test_random_weights_are_seeded_normal_and_bfloat16(config: dict[str, Any]) -> None:
    first, again, other = (dict(random_tensors(config, seed)) for seed in (1, 1, 2))
    embedding = "model.embed_tokens.weight"
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first[embedding], other[embedding])
    assert {tensor.dtype for tensor in first.values()} == {torch.bfloat16}
    assert first[embedding].float().std().item() == pytest.approx(0.02, rel=0.03)
    assert torch.equal(first["model.norm.weight"], torch.ones(64, dtype=torch.bfloat16))


def test_headrace_loads_the_folder_with_the_same_weights(config: dict[str, Any], folder: Path) -> None:
    expected = dict(random_tensors(config))
    weights = load_weights(resolve_model(str(folder)), read_spec(config, {}), dtype=torch.float32)
    assert torch.equal(weights.tables["embed"], expected["model.embed_tokens.weight"].float())
    llm = LLM(str(folder), dtype="float32", ops_force="reference", show_progress=False)
    (output,) = llm.generate(
        [[260, 261, 262]], SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True), use_tqdm=False
    )
    assert len(output.outputs[0].token_ids) == 5
    assert llm.tokenizer.encode("abcd") == [tokens(400).index("ab"), tokens(400).index("cd")]


def test_gguf_names_cover_every_tensor_and_values_survive(config: dict[str, Any], folder: Path) -> None:
    read = dict(read_bfloat16(folder / "model.safetensors"))
    expected = dict(random_tensors(config))
    assert read.keys() == expected.keys()
    for name, values in read.items():
        np.testing.assert_array_equal(values, expected[name].float().numpy())
    for model in MODELS:
        spec = spec_of(model)
        names = lower(spec, weight_names(spec)).tensors()
        assert len({gguf_name(name) for name in names}) == len(names)


def test_rotated_rows_turn_the_same_pairs() -> None:
    """Rope over neighbouring rows of the new order is rope over rows i and i + D/2 of the old one."""
    heads, dim, columns = 2, 8, 3
    weight = np.arange(heads * dim * columns, dtype=np.float32).reshape(heads * dim, columns)
    moved = rotated_rows(weight, heads).reshape(heads, dim // 2, 2, columns)
    old = weight.reshape(heads, dim, columns)
    for at in range(dim // 2):
        np.testing.assert_array_equal(moved[:, at, 0], old[:, at])
        np.testing.assert_array_equal(moved[:, at, 1], old[:, at + dim // 2])


def test_vocabulary_has_the_size_and_no_token_twice() -> None:
    made = tokens(32_000)
    assert len(made) == len(set(made)) == 32_000
    assert all(first + second in made[259:] for first, second in pairs(800)[:5])
    with pytest.raises(ValueError, match="merges"):
        tokens(258)
