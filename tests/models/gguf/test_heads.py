"""GGUF files of latent attention: matrices of heads that are split, old files whose are not, and files that lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import LLM, SamplingParams
from headrace.errors import ModelError
from headrace.models.families import read_spec
from headrace.models.gguf.checkpoint import GGUFCheckpoint
from headrace.models.safetensors_reader import Checkpoint
from tests import gguf_files, needs, tiny_checkpoint
from tests.places import TALE

gguf = needs.package("gguf")

KV_B = "model.layers.1.self_attn.kv_b_proj.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deepseek")
    tiny_checkpoint.write(folder, tiny_checkpoint.CONFIGS["deepseek"])
    (folder / "tokenizer.json").write_bytes((TALE / "tokenizer.json").read_bytes())
    config = json.loads((folder / "config.json").read_text())
    scaling = config["rope_scaling"]
    config |= {
        "bos_token_id": 0,
        "eos_token_id": 1,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "head_dim": 16,
    }
    config["rope_scaling"] = {**scaling, "rope_type": scaling["type"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("split", [True, False])
def test_both_kinds_of_files_hold_the_same(split: bool, folder: Path, tmp_path: Path) -> None:
    file = GGUFCheckpoint(gguf_files.write_gguf(folder, tmp_path / "m.gguf", "F32", split=split))
    expected = Checkpoint(folder)
    assert ("attn_k_b" in file.stored_name(KV_B)) == split
    assert set(file.names()) == set(expected.names())
    for name in expected.names():
        assert np.array_equal(file.array(name), expected.array(name)), name
    assert np.array_equal(file.rows(KV_B, 3, 90), expected.rows(KV_B, 3, 90))
    spec, wanted = read_spec(file.config), read_spec(json.loads((folder / "config.json").read_text()))
    assert spec.layers == wanted.layers


def test_a_quantised_file_runs_as_its_weights_do(folder: Path, tmp_path: Path) -> None:
    """In torch, which decodes them, and on the kernels, which keep all but the matrices of heads as they are."""
    path = gguf_files.write_gguf(folder, tmp_path / "m.gguf", "Q8_0")
    greedy = SamplingParams(max_tokens=3, temperature=0.0)

    def tokens(**options: Any) -> list[tuple[int, ...]]:
        llm = LLM(
            str(path), show_progress=False, num_threads=1, max_model_len=128, dtype="float32", **options
        )
        return [
            tuple(one.outputs[0].token_ids)
            for one in llm.generate(["Once upon a time"], greedy, use_tqdm=False)
        ]

    needs.native()  # rounds activations to 8 bits, so a text goes another way sooner or later
    assert tokens() == tokens(ops_force="torch")


def _without_values(name: str, values: Any, config: Any) -> list[tuple[str, Any]]:
    return [one for one in SPLIT(name, values, config) if "v_b_proj" not in one[0]]


def _other_heads(name: str, values: Any, config: Any) -> list[tuple[str, Any]]:
    return [(one, part[:3] if "v_b_proj" in one else part) for one, part in SPLIT(name, values, config)]


SPLIT = gguf_files._split_heads


@pytest.mark.parametrize(
    ("change", "words"),
    [(_without_values, "lacks blk.0.attn_v_b.weight"), (_other_heads, "not those of the same heads")],
)
def test_tensors_that_do_not_belong_together(
    change: Callable[..., Any], words: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_files, "_split_heads", change)
    path = gguf_files.write_gguf(folder, tmp_path / "m.gguf", "F32")
    with pytest.raises(ModelError, match=words) as caught:
        GGUFCheckpoint(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("kv_lora_rank", 1 << 31, "kv_lora_rank"),
        ("qk_nope_head_dim", 0, "of which 16 are rotated"),
        ("n_group", 4, "cannot be 4 equal groups"),
        ("v_head_dim", 1 << 20, "value_length_mla"),
    ],
)
def test_metadata_that_lies(key: str, value: int, words: str, folder: Path, tmp_path: Path) -> None:
    """The tensors are those of the true sizes."""
    lies = tmp_path / "lies"
    lies.mkdir()
    for file in ("tokenizer.json", "model.safetensors"):
        (lies / file).symlink_to(folder / file)
    config = json.loads((folder / "config.json").read_text())
    (lies / "config.json").write_text(json.dumps({**config, key: value}))
    split = gguf_files._split_heads
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_files, "_split_heads", lambda name, values, _: split(name, values, config))
        path = gguf_files.write_gguf(lies, tmp_path / "m.gguf", "F32")
    with pytest.raises(ModelError, match=words) as caught:
        read_spec(GGUFCheckpoint(path).config)
    assert "\n" not in str(caught.value)
