"""Embeddings of whole models against transformers' last_hidden_state, through the offline API."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import headrace
from headrace import LLM
from tests import needs
from tests.conformance.test_families import CASES, prompt
from tests.conformance.test_native import widened

TALE = Path(headrace.__file__).parent / "bundled" / "tale"


@pytest.mark.parametrize("force", [None, "torch"], ids=["native", "torch"])
@pytest.mark.parametrize(
    "name", ["llama-gqa", "llama-biases", "llama-yarn", "mistral-window", "qwen2-layer-types", "qwen3-full"]
)
def test_embeddings_match(name: str, force: str | None, tmp_path: Path) -> None:
    model = widened(CASES[name]).build(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE / file, tmp_path)
    options = {} if force is None else {"ops_force": force}
    # Chunks of 17 tokens, and several prompts in one step.
    llm = LLM(
        str(tmp_path), dtype="float32", num_threads=1, max_num_batched_tokens=17, max_num_seqs=8,
        show_progress=False, **options,
    )  # fmt: skip
    if force is None and llm.parts.resolved.kernels is None:
        needs.native()
    prompts = [prompt(length, seed=length) for length in (1, 5, 40, 83)]
    with torch.inference_mode():
        states = [model.model(torch.tensor([ids])).last_hidden_state[0].numpy() for ids in prompts]
    for ours, theirs in zip(llm.hidden_states(prompts, use_tqdm=False), states, strict=True):
        assert ours.shape == theirs.shape and np.abs(ours - theirs).max() < 1e-4
    for pooling, expected in (("mean", [s.mean(axis=0) for s in states]), ("last", [s[-1] for s in states])):
        raw = vectors(llm, prompts, pooling, normalize=False)
        for ours, theirs in zip(raw, expected, strict=True):
            assert np.abs(ours - theirs).max() < 1e-4
        short = vectors(llm, prompts, pooling, dimensions=24)
        for ours, theirs in zip(short, expected, strict=True):
            cut = theirs[:24]
            assert np.abs(ours - cut / np.linalg.norm(cut)).max() < 1e-5


def vectors(llm: LLM, prompts: list[list[int]], pooling: str, **options: object) -> list[NDArray[np.float32]]:
    outputs = llm.embed(prompts, pooling=pooling, use_tqdm=False, **options)  # type: ignore[arg-type]
    return [np.array(output.outputs.embedding, dtype=np.float32) for output in outputs]
