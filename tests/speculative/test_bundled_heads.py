"""The bundled heads draft for tale as well as their config.json says, by a few lines of numpy and by transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace import LLM, SamplingParams
from headrace.speculative.base_model import base_model, read_ends
from headrace.speculative.heads import BUNDLED_HEADS, EagleHeads, MedusaHeads, heads_folder, load_heads
from tests import needs
from tests.places import BUNDLED

transformers = needs.lazily("transformers")

PROMPTS = ["Once upon a time", "Tell me a story about an owl.", "There was a tiny robot", "One day a kind"]
LARGEST_BYTES = 4_000_000
"""Of all heads and the draft model together."""


@pytest.fixture(scope="module")
def tale() -> LLM:
    return LLM("tale", num_threads=1, show_progress=False)


def loaded(name: str, llm: LLM) -> MedusaHeads | EagleHeads:
    return load_heads(heads_folder(name), base_model(llm.parts.source, llm.parts.spec))


@pytest.fixture(scope="module")
def stories(tale: LLM) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """What tale writes greedily: tokens, and their hidden states."""
    outputs = tale.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=120), use_tqdm=False)
    ids = [[*one.prompt_token_ids, *one.outputs[0].token_ids] for one in outputs]
    states = tale.hidden_states(ids, use_tqdm=False)
    return [(np.array(tokens), found) for tokens, found in zip(ids, states, strict=True)]


@pytest.fixture(scope="module")
def head(tale: LLM) -> NDArray[np.float32]:
    return read_ends(tale.parts.source, tale.parts.spec).head


def test_medusa(
    tale: LLM, stories: list[tuple[NDArray[np.int64], NDArray[np.float32]]], head: NDArray[np.float32]
) -> None:
    heads = loaded("tale-medusa", tale)
    assert isinstance(heads, MedusaHeads) and len(heads.tree) == len(heads.shares) > 20
    for i, blocks in enumerate(heads.blocks):
        right = []
        for tokens, states in stories:
            h = states[8 : len(tokens) - i - 2]
            for weight, bias in blocks:
                x = h @ weight.T + bias
                h = h + x / (1 + np.exp(-x))
            right += ((h @ head.T).argmax(axis=1) == tokens[10 + i :]).tolist()
        assert len(right) > 300 and np.mean(right) > heads.accuracy[i][0] - 0.1


@pytest.mark.long
def test_eagle(
    tale: LLM, stories: list[tuple[NDArray[np.int64], NDArray[np.float32]]], head: NDArray[np.float32]
) -> None:
    heads = loaded("tale-eagle", tale)
    assert isinstance(heads, EagleHeads)
    layer = heads.layer
    model = transformers.LlamaModel(
        transformers.LlamaConfig(
            hidden_size=256,
            intermediate_size=layer.intermediate_size,
            num_hidden_layers=1,
            vocab_size=8,
            num_attention_heads=layer.num_attention_heads,
            num_key_value_heads=layer.num_key_value_heads,
            head_dim=layer.head_dim,
            rms_norm_eps=layer.rms_norm_eps,
            rope_theta=layer.rope_theta,
        )
    )
    own = {name.removeprefix("model."): torch.from_numpy(one) for name, one in heads.tensors.items()}
    fc = own.pop("fc.weight").numpy()
    model.load_state_dict(own | {"embed_tokens.weight": torch.zeros(8, 256)})
    right = []
    for tokens, states in stories:
        before = np.concatenate((np.zeros((1, 256), np.float32), states[:-1]))
        read = torch.from_numpy(np.concatenate((before, head[tokens]), axis=1) @ fc.T)
        with torch.inference_mode():
            found = model(inputs_embeds=read[None]).last_hidden_state[0].numpy()
        right += ((found @ head.T).argmax(axis=1)[8:-1] == tokens[9:]).tolist()
    assert len(right) > 300 and np.mean(right) > heads.accuracy[0][0] - 0.1


def test_they_are_small_and_say_what_they_were_trained_on() -> None:
    folders = [BUNDLED / "tale-draft", *map(heads_folder, BUNDLED_HEADS)]
    weights = [path for folder in folders for path in Path(folder).glob("*.safetensors")]
    assert len(weights) == len(folders) and sum(path.stat().st_size for path in weights) <= LARGEST_BYTES
    for folder in folders[1:]:
        section = json.loads((folder / "config.json").read_text())["headrace_heads"]
        assert section["model"] == "tale" and section["training"]["tokens"] > 100_000
        assert (folder / "README.md").is_file()
