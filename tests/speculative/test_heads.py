"""Draft heads are read as they were written, and refused where they are not those of the model or not whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import CheckpointError, ConfigError, ModelNotFound
from headrace.models.families import read_spec
from headrace.models.source import resolve_model
from headrace.models.stored import open_source, stored_spec
from headrace.plan.drafts import DraftHeads
from headrace.speculative.base_model import BaseModel, base_model, read_ends
from headrace.speculative.heads import EagleHeads, MedusaHeads, describe_heads, heads_folder, load_heads
from tests.gguf_files import write_gguf
from tests.places import BUNDLED, TALE
from tests.speculative.heads_folders import (
    EAGLE_SHAPES,
    LAYER,
    RNG,
    SAMPLE,
    H,
    Tensors,
    V,
    eagle_tensors,
    medusa_tensors,
    section,
    write,
)

BASE = BaseModel("small", V, H, SAMPLE)
TREE = [[0], [1], [0, 0], [1, 3]]


def test_medusa_heads_are_read_as_written(tmp_path: Path) -> None:
    tensors = medusa_tensors() | {"heads.1.head.weight": RNG.standard_normal((V, H)).astype(np.float32)}
    config = section(
        "medusa", accuracy=[[0.5, 0.6, 0.7, 0.8]] * 2, tree=TREE, tree_shares=[0.5, 0.2, 0.2, 0.1]
    )
    folder = write(tmp_path, config, tensors)
    found = load_heads(folder, BASE)
    assert isinstance(found, MedusaHeads)
    size = sum(4 * one.size for one in tensors.values())
    assert describe_heads(folder) == DraftHeads(folder.name, size, nodes=4, count=2, shared=1)
    for i, ((weight, bias),) in enumerate(found.blocks):
        assert weight.dtype == bias.dtype == np.float32
        np.testing.assert_array_equal(weight, tensors[f"heads.{i}.blocks.0.weight"])
        np.testing.assert_array_equal(bias, tensors[f"heads.{i}.blocks.0.bias"])
    assert found.heads[0] is None and found.heads[1] is not None
    np.testing.assert_array_equal(found.heads[1], tensors["heads.1.head.weight"])
    assert found.tree == ((0,), (1,), (0, 0), (1, 3)) and found.shares == (0.5, 0.2, 0.2, 0.1)
    assert found.accuracy == ((0.5, 0.6, 0.7, 0.8),) * 2


def test_an_eagle_layer_is_read_as_written(tmp_path: Path) -> None:
    tensors = eagle_tensors()
    found = load_heads(write(tmp_path, section("eagle"), tensors), BASE)
    assert isinstance(found, EagleHeads)
    assert (found.layer.num_attention_heads, found.layer.head_dim, found.layer.hidden_size) == (4, 4, H)
    assert found.tensors.keys() == EAGLE_SHAPES.keys()
    for name, one in found.tensors.items():
        np.testing.assert_array_equal(one, tensors[name])


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_heads_of_the_medusa_project_are_read(tmp_path: Path, prefix: str) -> None:
    tensors: Tensors = {}
    for i in range(3):
        tensors[f"{prefix}{i}.0.linear.weight"] = RNG.standard_normal((H, H)).astype(np.float16)
        tensors[f"{prefix}{i}.0.linear.bias"] = RNG.standard_normal(H).astype(np.float16)
        tensors[f"{prefix}{i}.1.weight"] = RNG.standard_normal((V, H)).astype(np.float16)
    folder = write(tmp_path, {"medusa_num_heads": 3, "medusa_num_layers": 1}, tensors)
    found = load_heads(folder, BASE)
    assert isinstance(found, MedusaHeads) and len(found.blocks) == 3 and found.tree == ()
    planned = describe_heads(folder)
    assert (planned.nodes, planned.count, planned.shared) == (0, 3, 0)
    np.testing.assert_array_equal(found.blocks[2][0][1], tensors[f"{prefix}2.0.linear.bias"])
    assert found.heads[2] is not None
    np.testing.assert_array_equal(found.heads[2], tensors[f"{prefix}2.1.weight"])
    with pytest.raises(ConfigError, match=r"vocab_size and hidden_size \[20, 8\]; other has \[21, 8\]"):
        load_heads(folder, BaseModel("other", V + 1, H))


def test_quantised_embeddings_are_those_of_the_same_model(tmp_path: Path) -> None:
    folder = write(tmp_path, section("medusa"), medusa_tensors())
    rough = np.round(SAMPLE * 2.0) / 2.0
    assert load_heads(folder, replace(BASE, sample=rough))
    assert load_heads(folder, replace(BASE, sample=None))
    with pytest.raises(ConfigError, match="are for 'small', whose embeddings are not those of other"):
        load_heads(folder, BaseModel("other", V, H, np.roll(SAMPLE, 1, axis=0)))


def _without(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.pop(name)


def _put(name: str, value: Any) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: value})


W = "heads.0.blocks.0.weight"


@pytest.mark.parametrize(
    ("method", "fields", "change", "said"),
    [
        ("medusa", {"hidden_size": 16}, None, "has hidden_size 16; small has 8"),
        ("medusa", {"vocab_size": 32000}, None, "has vocab_size 32000; small has 20"),
        ("medusa", {"format": 2}, None, "has format 2"),
        ("hydra", {}, None, "method 'hydra'"),
        ("medusa", {"num_heads": 10**9}, None, "num_heads"),
        ("medusa", {"num_blocks": 0}, None, "num_blocks"),
        ("medusa", {"num_blocks": 2}, None, "lacks tensor heads.0.blocks.1.weight"),
        ("medusa", {}, _without(W), f"lacks tensor {W}"),
        ("medusa", {}, _put(W, np.zeros((H, H + 1), np.float16)), r"has shape \[8, 9\], but \[8, 8\]"),
        ("medusa", {}, _put(W, np.zeros((H, H), np.int32)), "is stored as I32, not as a float"),
        ("medusa", {}, _put(W, np.full((H, H), np.nan, np.float32)), "not finite"),
        ("medusa", {"tree": [[0, 0]]}, None, "comes twice, or before its parent"),
        ("medusa", {"tree": [[0], [0]]}, None, "comes twice"),
        ("medusa", {"tree": [[0], [0, 1], [0, 1, 0]]}, None, "not a path of 1 to 2 ranks"),
        ("medusa", {"tree": [[V]]}, None, "is not a path"),
        ("medusa", {"tree": [[True]]}, None, "is not a path"),
        ("medusa", {"tree": "00"}, None, "must be a list"),
        ("medusa", {"tree": [[0]] * 2000}, None, "at most 1024 paths"),
        ("medusa", {"tree": [[0]], "tree_shares": [2.0]}, None, "tree_shares"),
        ("medusa", {"accuracy": [[0.5]]}, None, "accuracy"),
        ("eagle", {"layer": None}, None, 'no object "layer"'),
        ("eagle", {"layer": LAYER | {"num_attention_heads": 3}}, None, "multiple of num_key_value_heads"),
        ("eagle", {"layer": LAYER | {"head_dim": 3}}, None, "must be even"),
        ("eagle", {"layer": LAYER | {"num_attention_heads": 4096, "head_dim": 1024}}, None, "features"),
        ("eagle", {"layer": LAYER | {"intermediate_size": 10**12}}, None, "intermediate_size"),
        ("eagle", {"layer": LAYER | {"rope_theta": -1}}, None, "rope_theta"),
        ("eagle", {}, _without("model.fc.weight"), "lacks tensor model.fc.weight"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, method: str, fields: dict[str, Any], change: Callable[[Tensors], Any] | None, said: str
) -> None:
    tensors = eagle_tensors() if method == "eagle" else medusa_tensors()
    if change is not None:
        change(tensors)
    folder = write(tmp_path, section(method, **fields), tensors)
    with pytest.raises((CheckpointError, ConfigError), match=said) as error:
        load_heads(folder, BASE)
    assert "\n" not in str(error.value)


def test_the_choices_of_a_head_are_bounded_in_large_vocabularies(tmp_path: Path) -> None:
    base = BaseModel("small", 100_000, H)
    for rank in (255, 256):
        fields = {"vocab_size": base.vocab_size, "tree": [[0], [rank]]}
        folder = write(tmp_path, section("medusa", **fields), medusa_tensors())
        if rank == 255:
            assert isinstance(load_heads(folder, base), MedusaHeads)
            continue
        with pytest.raises(CheckpointError, match=r"\[256\] is not a path of 1 to 2 ranks from 0 to 255"):
            load_heads(folder, base)


def test_a_folder_without_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no draft heads 'nowhere'"):
        heads_folder("nowhere")
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        load_heads(tmp_path, BASE)
    with pytest.raises(CheckpointError, match="not a folder of draft heads"):
        load_heads(BUNDLED / "tale", BASE)


def test_the_ends_of_a_model_are_read_as_floats() -> None:
    source = open_source(resolve_model("tale"))
    spec = stored_spec(source)
    base, ends = base_model(source, spec), read_ends(source, spec)
    assert (base.vocab_size, base.hidden_size) == (2048, 256)
    assert ends.head is ends.embedding and ends.embedding.shape == (2048, 256) and ends.bias is None
    assert base.sample is not None
    np.testing.assert_array_equal(base.sample, ends.embedding[128::256])
    shape = resolve_model("shape:llama-3.1-8b")
    assert base_model(shape, read_spec(shape.config)).sample is None


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q2_K"])
def test_heads_of_a_model_fit_its_gguf_files(kind: str, tmp_path: Path) -> None:
    whole = base_of("tale")
    assert whole.sample is not None
    folder = write(
        tmp_path / "heads",
        section("medusa", vocab_size=2048, hidden_size=256, num_heads=1),
        {
            "base.embedding_sample": whole.sample,
            W: np.zeros((256, 256), np.float16),
            "heads.0.blocks.0.bias": np.zeros(256, np.float16),
        },
    )
    base = base_of(str(write_gguf(TALE, tmp_path / "tale.gguf", kind)))
    assert base.sample is not None and not np.array_equal(base.sample, whole.sample)
    assert load_heads(folder, base)
    with pytest.raises(ConfigError, match="are not those of"):
        load_heads(folder, replace(base, sample=np.roll(base.sample, 1, axis=0)))


def base_of(model: str) -> BaseModel:
    source = open_source(resolve_model(model))
    return base_model(source, stored_spec(source))
