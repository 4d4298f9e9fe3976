"""GGUF files of models with recurrent layers: old and new ones, layers that are not read, and files that lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import LLM, SamplingParams
from headrace.errors import ModelError
from headrace.models.families import read_spec
from headrace.models.gguf.checkpoint import GGUFCheckpoint
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.spec import ConvSpec, DeltaSpec
from tests import gguf_files, needs, tiny_checkpoint
from tests.gguf_bytes import Tensor, model
from tests.gguf_files import LAYOUTS, write_gguf
from tests.places import TALE

gguf = needs.package("gguf")

IDS = {"bos_token_id": 0, "eos_token_id": 1}
NEXT = tiny_checkpoint.RECURRENT["delta"] | {
    "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "layer_types": None,
    "full_attention_interval": 2, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "norm_topk_prob": True, "linear_conv_kernel_dim": 4, **IDS,
    "rms_norm_eps": 2.0**-17,  # what float32 holds
    "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
}  # fmt: skip
LFM2 = tiny_checkpoint.RECURRENT["convolution"] | IDS | {"block_auto_adjust_ff_dim": False, "conv_L_cache": 3}
RATE = "blk.0.ssm_a"


def folder_of(config: dict[str, Any], folder: Path) -> Path:
    folder.mkdir()
    tiny_checkpoint.write(folder, config)
    (folder / "tokenizer.json").write_bytes((TALE / "tokenizer.json").read_bytes())
    return folder


@pytest.mark.parametrize("apart", [True, False])
def test_both_kinds_of_files_of_qwen3_next(
    apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of 2025 hold q, k, v and gate in one tensor, later ones in two."""
    if not apart:
        layout = replace(LAYOUTS["qwen3_next"], divide=gguf_files.Layout.divide)
        monkeypatch.setitem(LAYOUTS, "qwen3_next", layout)
    folder = folder_of(NEXT, tmp_path / "f")
    file = GGUFCheckpoint(write_gguf(folder, tmp_path / "m.gguf", "F32"))
    expected = Checkpoint(folder)
    spec, wanted = read_spec(file.config), read_spec(NEXT)
    mixer = wanted.layers[0].mixer
    assert isinstance(mixer, DeltaSpec)
    assert (
        spec.layers[0].mixer == replace(mixer, fused=not apart)
        and spec.layers[1].feed_forward == wanted.layers[1].feed_forward
    )
    whole = {name for name in expected.names() if "in_proj_qkvz" not in name}
    assert whole <= set(file.names())
    for name in whole:
        offset = name.endswith("norm.weight") and "linear_attn" not in name
        assert np.allclose(file.array(name), expected.array(name) + offset, rtol=1e-6, atol=1e-6), name


@pytest.mark.parametrize("config", [NEXT, LFM2], ids=["delta", "convolution"])
def test_a_quantised_file_runs_as_its_weights_do(config: dict[str, Any], tmp_path: Path) -> None:
    """In torch, which decodes them, and on the kernels, which keep them as they are."""
    path = write_gguf(folder_of(config, tmp_path / "f"), tmp_path / "m.gguf", "Q8_0")
    greedy = SamplingParams(max_tokens=3, temperature=0.0)

    def tokens(**options: Any) -> list[tuple[int, ...]]:
        llm = LLM(
            str(path), show_progress=False, num_threads=1, max_model_len=128, dtype="float32", **options
        )
        made = llm.generate(["Once upon a time"], greedy, use_tqdm=False)
        return [tuple(one.outputs[0].token_ids) for one in made]

    needs.native()  # rounds activations to 8 bits, so a text goes another way sooner or later
    assert tokens() == tokens(ops_force="torch")


def test_layers_that_predict_further_tokens_are_not_read(tmp_path: Path) -> None:
    file = model("qwen3")
    file.metadata = {**dict(file.metadata), "qwen3.nextn_predict_layers": 1}
    file.tensors = {**dict(file.tensors), "blk.1.nextn.eh_proj.weight": Tensor((32, 64))}
    opened = GGUFCheckpoint(file.write(tmp_path / "m.gguf"))
    assert opened.config["num_hidden_layers"] == 1
    assert not [name for name in opened.names() if ".1." in name]


def test_layers_without_kv_heads_are_convolutions(tmp_path: Path) -> None:
    path = write_gguf(folder_of(LFM2, tmp_path / "f"), tmp_path / "m.gguf", "F32")
    spec = read_spec(GGUFCheckpoint(path).config)
    assert [isinstance(layer.mixer, ConvSpec) for layer in spec.layers] == [True, False, True]


@pytest.mark.parametrize(
    ("model_type", "fields", "words"),
    [
        ("qwen3_next", {"linear_num_key_heads": 3}, "must be a multiple of linear_num_key_heads 3"),
        ("qwen3_next", {"linear_conv_kernel_dim": 1 << 20}, "ssm.conv_kernel"),
        ("qwen3_next", {"full_attention_interval": 0}, "full_attention_interval"),
        ("qwen3_next", {"num_experts": 1 << 20}, "expert_count"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "3 whole numbers between 0 and"),
        ("lfm2", {"conv_L_cache": 1}, "shortconv.l_cache"),
    ],
)
def test_metadata_that_lies(
    model_type: str, fields: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensors are those of the true sizes."""
    config = NEXT if model_type == "qwen3_next" else LFM2
    layout, sizes = LAYOUTS[model_type], gguf_files._add_sizes
    told = replace(layout, metadata=lambda gguf, writer, true: layout.metadata(gguf, writer, true | fields))
    monkeypatch.setitem(LAYOUTS, model_type, told)
    if "layer_types" in fields:
        monkeypatch.setattr(
            gguf_files,
            "_add_sizes",
            lambda gguf, writer, true, further: sizes(gguf, writer, true | fields, further),
        )
    path = write_gguf(folder_of(config, tmp_path / "f"), tmp_path / "m.gguf", "F32")
    with pytest.raises(ModelError, match=words) as caught:
        read_spec(GGUFCheckpoint(path).config)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("number", [0.5, float("nan"), float("-inf")])
def test_rates_that_have_no_logarithm(number: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LAYOUTS["qwen3_next"]

    def change(name: str, values: Any, config: Any) -> Any:
        values = layout.change(name, values, config)
        return np.full_like(values, number) if name.endswith("A_log") else values

    monkeypatch.setitem(LAYOUTS, "qwen3_next", replace(layout, change=change))
    path = write_gguf(folder_of(NEXT, tmp_path / "f"), tmp_path / "m.gguf", "F32")
    with pytest.raises(ModelError, match=f"'{RATE}' in m.gguf must hold finite numbers of at most zero"):
        GGUFCheckpoint(path).array("model.layers.0.linear_attn.A_log")
