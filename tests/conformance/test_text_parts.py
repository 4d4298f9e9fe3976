"""The text part of checkpoints with images against transformers, tied and not, whatever the part's own config says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.models.source import resolve_model
from headrace.runner.torch_decoder import Decoder
from tests import needs
from tests.conformance.test_families import HYBRID, LENGTH, MIXTURE, SIZES, distance, expected_logits, prompt

transformers = needs.lazily("transformers")

SEEING = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 14,
}
QWEN = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": SIZES["hidden_size"],
}
LLAMA4 = {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32, "image_size": 28}
EXPERTS = {"intermediate_size_mlp": 72, "num_local_experts": 5, "attention_chunk_size": 13}

PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Gemma3": ({"head_dim": 16, "sliding_window": 9}, {**SEEING, "image_size": 28}),
    "Mistral3": (
        {"model_type": "mistral"},
        {**SEEING, "model_type": "pixtral", "image_size": 28, "head_dim": 16},
    ),
    "Qwen3_5": (HYBRID, QWEN),
    "Qwen3_5Moe": ({**HYBRID, **MIXTURE}, QWEN),
    "Llama4": ({"head_dim": 16, **EXPERTS}, {**SEEING, **LLAMA4}),
}
"""By family: fields of the text and of what sees."""

USUAL = ("Gemma3-True-False", "Qwen3_5-False-True")


def cases() -> list[Any]:
    names = [(name, text, whole) for name in PARTS for text in (True, False) for whole in (True, False)]
    usual = {one: () if "-".join(map(str, one)) in USUAL else pytest.mark.long for one in names}
    return [pytest.param(*one, marks=mark) for one, mark in usual.items()]


@pytest.mark.parametrize(("name", "text", "whole"), cases())
def test_the_text_part_matches(
    name: str, text: bool, whole: bool, tmp_path: Path, open_decoder: Callable[..., Decoder], paged_run: Any
) -> None:
    """`text`, `whole`: whether the config of the text part, and that around it, say that embeddings are tied."""
    fields, seeing = PARTS[name]
    torch.manual_seed(7)
    config = getattr(transformers, f"{name}Config")(
        text_config={**SIZES, **fields, "tie_word_embeddings": text},
        vision_config=seeing,
        tie_word_embeddings=whole,
    )
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert (saved["text_config"]["tie_word_embeddings"], saved["tie_word_embeddings"]) == (text, whole)
    ours = paged_run(open_decoder(tmp_path)).step({0: prompt()})[0]
    # The whole of Llama 4 does not run in transformers 5.24: it looks for an output that its text part does not have.
    reader = model.language_model if name == "Llama4" else model
    assert ours.shape[0] == LENGTH and distance(ours, expected_logits(reader, prompt())) < 1e-4


def test_a_folder_without_weights_keeps_its_config(tmp_path: Path) -> None:
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "tie_word_embeddings": True,
        "text_config": {"model_type": "qwen3_5_text", "tie_word_embeddings": False},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert resolve_model(str(tmp_path)).config == config
