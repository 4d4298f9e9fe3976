"""The layer of a checkpoint that predicts further tokens drafts as transformers' layer of the same weights does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace import LLM
from headrace.build import survey
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.errors import CheckpointError, ConfigError
from tests import needs, tiny_mtp
from tests.gguf_files import write_gguf
from tests.models.quantized.packers import fp8
from tests.speculative.watched import drive

needs.native()
transformers = needs.lazily("transformers")
PROMPT = tuple(range(20, 42))


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    found: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight
    return found


class Reference:
    """eh_proj @ [norm of the embedding; norm of the state before], then the layer and the last norm."""

    def __init__(self, folder: Path, name: str) -> None:
        layer = tiny_mtp.write_layer(folder / "layer", name)
        model = transformers.AutoModelForCausalLM.from_pretrained(layer, dtype=torch.float32).eval()
        self._layer, made = model.model, tiny_mtp.tensors(name)
        prefix, join, state, embedding, _ = tiny_mtp.NAMES[name]
        offset = 1.0 if name == "delta" else 0.0  # Qwen stores these norms less one
        self._join = made[f"{prefix}{join}.weight"]
        self._state = made[f"{prefix}{state}.weight"] + offset
        self._embedding = made[f"{prefix}{embedding}.weight"] + offset
        self._embed, self._head = made["model.embed_tokens.weight"], made["lm_head.weight"]

    @torch.inference_mode()
    def draft(self, tokens: Sequence[int], states: np.ndarray, count: int) -> tuple[int, ...]:
        """Greedily, after `tokens`; `states` of all of them but the last."""
        before, read, drafts = np.concatenate((np.zeros_like(states[:1]), states)), list(tokens), []
        for _ in range(count):
            halves = (normed(self._embed[read], self._embedding), normed(before, self._state))
            inputs = torch.from_numpy((np.concatenate(halves, axis=1) @ self._join.T).astype(np.float32))
            found = self._layer(inputs_embeds=inputs[None], use_cache=False).last_hidden_state[0, -1].numpy()
            drafts.append(int((self._head @ found).argmax()))
            read.append(drafts[-1])
            before = np.concatenate((before, found[None]))
        return tuple(drafts)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("deepseek", None),
        *(
            pytest.param(name, ops, marks=LONG)
            for name, ops in [
                ("deepseek", "reference"), ("glm", None), ("glm", "reference"), ("delta", None), ("delta", "reference"),
            ]
        ),
    ],
)  # fmt: skip
def test_drafts_are_those_of_the_formula(name: str, ops: str | None, tmp_path: Path) -> None:
    folder = tiny_mtp.write(tmp_path / "model", name)
    greedy = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    options = {"num_speculative_tokens": 3, "ops_force": ops, "max_num_batched_tokens": 13}
    _, watched = drive(
        [NewRequest("a", PROMPT, greedy)], model=str(folder), speculative="mtp", tokenizer="tale", **options
    )
    reference = Reference(tmp_path, name)
    plain = LLM(str(folder), tokenizer="tale", dtype="float32", num_threads=1, show_progress=False)
    longest = max((tokens for tokens, _ in watched.proposed), key=len)
    (states,) = plain.hidden_states([list(longest)], use_tqdm=False)
    assert len(watched.proposed) >= 5
    for tokens, drafts in watched.proposed:
        assert drafts == reference.draft(tokens, states[: len(tokens) - 1], len(drafts)), len(tokens)
    assert any(len(drafts) == 3 for _, drafts in watched.proposed)


@pytest.mark.parametrize("name", ["glm", pytest.param("delta", marks=LONG)])
def test_a_gguf_file_brings_the_same_layer(name: str, tmp_path: Path) -> None:
    """As `blk.N.nextn`, after the model's layers; copies of the embedding and the head are not read."""
    folder = tiny_mtp.write(tmp_path / "model", name)
    path = write_gguf(folder, tmp_path / "model.gguf", "F32")
    request = NewRequest("a", PROMPT, SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))
    proposed = []
    for model in (folder, path):
        options = {"speculative": "mtp", "tokenizer": "tale", "num_speculative_tokens": 3}
        _, watched = drive([request], model=str(model), **options)
        proposed.append(watched.proposed)
    assert proposed[0] == proposed[1] and len(proposed[0]) >= 5


def test_a_quantised_gguf_file_drafts_with_its_blocks(tmp_path: Path) -> None:
    """`auto` finds the layer, whose last norm is the model's where it has none, and the answer stays the same."""
    folder = tiny_mtp.write(tmp_path / "model", "glm", without="model.layers.2.shared_head.norm.weight")
    path = str(write_gguf(folder, tmp_path / "model.gguf", "Q8_0"))
    plan = survey(EngineConfig(path, speculative="auto", tokenizer="tale", kv_cache_memory="4MiB"))
    draft = plan.resolved.draft_model
    assert plan.resolved.speculative == "ngram,mtp" and draft is not None and draft.spec.codes is not None
    assert "model.layers.2.eh_proj.weight" in dict(draft.spec.codes.formats)
    assert not any("layers.2." in one for one, _ in plan.spec.codes.formats)  # those of the model are apart
    greedy = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    options: dict[str, Any] = {"num_threads": 1, "show_progress": False, "tokenizer": "tale"}
    prompt = {"prompt_token_ids": list(PROMPT)}
    (plain,) = LLM(path, **options).generate([prompt], greedy, use_tqdm=False)
    always = LLM(path, speculative="mtp", adaptive_speculation=False, **options)
    (found,) = always.generate([prompt], greedy, use_tqdm=False)
    assert found.outputs[0].token_ids == plain.outputs[0].token_ids
    assert always.parts.engine.stats().scheduler.draft_tokens > 5


def test_models_without_such_a_layer_are_refused(tmp_path: Path) -> None:
    def refused(error: type[Exception], words: str, folder: str | Path, **options: str) -> None:
        with pytest.raises(error, match=words):
            survey(EngineConfig(str(folder), speculative="mtp", tokenizer="tale", **options))

    refused(ConfigError, "tale has no layer that predicts further tokens", "tale")
    refused(ConfigError, "has no layer", "shape:deepseek-v3", dtype="bfloat16")
    lacks = tiny_mtp.write(tmp_path / "lacks", "deepseek", without="model.layers.3.eh_proj.weight")
    refused(ConfigError, "no tensor model.layers.3.eh_proj.weight", lacks)
    narrow = {"model.layers.3.eh_proj.weight": np.zeros((64, 64), np.float32)}
    folder = tiny_mtp.write(tmp_path / "narrow", "deepseek", narrow)
    with pytest.raises(CheckpointError, match=r"eh_proj.weight has shape \[64, 64\]"):
        LLM(str(folder), speculative="mtp", tokenizer="tale", show_progress=False)
    less = tiny_mtp.write(tmp_path / "less", "deepseek", without="model.layers.3.self_attn.o_proj.weight")
    with pytest.raises(CheckpointError, match=r"lacks tensor model.layers.3.self_attn.o_proj.weight"):
        LLM(str(less), speculative="mtp", tokenizer="tale", show_progress=False)


def test_the_plan_counts_the_layer(tmp_path: Path) -> None:
    folder = str(tiny_mtp.write(tmp_path / "model", "deepseek"))
    plain = survey(EngineConfig(folder, tokenizer="tale", kv_cache_memory="4MiB"))
    found = survey(EngineConfig(folder, speculative="mtp", tokenizer="tale", kv_cache_memory="4MiB"))
    own = sum(
        values.size
        for tensor, values in tiny_mtp.tensors("deepseek").items()
        if tensor.startswith("model.layers.3.") and "embed_tokens" not in tensor and "head.head" not in tensor
    )
    assert found.resolved.num_draft_groups == 1
    assert own * 4 <= found.ledger.weight_bytes - plain.ledger.weight_bytes < own * 6


def test_a_layer_that_is_stored_as_codes_keeps_them(tmp_path: Path) -> None:
    """As in the published files of DeepSeek V3: FP8 with a scale for each block, and the join as floats."""
    folder, case, draw = tiny_mtp.write(tmp_path / "model", "glm"), fp8("block"), np.random.default_rng(3)
    path = folder / "model.safetensors"
    tensors, meant = load_file(path), {}
    for name in [one for one in tensors if one.endswith("_proj.weight") and ".eh_proj" not in one]:
        parts, meant[name] = case.pack(*tensors.pop(name).shape, draw)
        tensors |= {name.removesuffix(".weight") + suffix: part for suffix, part in parts.items()}
    save_file(tensors, path)
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": case.config}
    (folder / "config.json").write_text(json.dumps(config))

    plan = survey(EngineConfig(str(folder), speculative="mtp", tokenizer="tale", kv_cache_memory="4MiB"))
    draft, files = plan.resolved.draft_model, plan.layers
    assert draft is not None and files is not None and draft.spec.codes is not None
    stored = {name for name, _ in draft.spec.codes.formats}
    assert stored == {name for name in meant if name.startswith("model.layers.2.")}
    for name in stored:
        for rows, values in files.floats(name):
            assert np.array_equal(values, meant[name].numpy()[rows])
    greedy = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    options: dict[str, Any] = {"num_threads": 1, "show_progress": False, "tokenizer": "tale"}
    prompt = {"prompt_token_ids": list(PROMPT)}
    (plain,) = LLM(str(folder), **options).generate([prompt], greedy, use_tqdm=False)
    always = LLM(str(folder), speculative="mtp", adaptive_speculation=False, **options)
    (found,) = always.generate([prompt], greedy, use_tqdm=False)
    assert found.outputs[0].token_ids == plain.outputs[0].token_ids
    assert always.parts.engine.stats().scheduler.draft_tokens > 5
