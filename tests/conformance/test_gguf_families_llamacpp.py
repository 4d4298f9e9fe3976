"""The GGUF files of every family that tests write, in llama.cpp: they say to it what they say here.

So what the tests read is laid out as llama.cpp's own converter does it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs
from tests.conformance.test_families import CASES, expected_logits, prompt
from tests.conformance.test_gguf import FAMILIES
from tests.gguf_files import write_gguf

pytestmark = pytest.mark.long

OTHERWISE = {"llama-yarn-factor", "qwen3-bias-tied", "gpt-oss", "gemma4"}
"""llama.cpp multiplies YaRN's factor by its own, has no biases in Qwen3, caps Gemma 4's logits even where the file does
not say so, and rounds the ends of YaRN's ramp, which gpt-oss does not: with rounded ends the logits are equal."""

NOT_LOADED = {"deepseek-v2", "deepseek-v2-lite", "deepseek-v3-file", "glm4-moe-lite-file"}
"""llama.cpp knows DeepSeek V2-Lite by its 27 layers, and ends its process with tiny files of the others: latent
attention is not compared with it here."""

WITHOUT_WINDOW = {"mistral-window", "mistral-head-dim", "mixtral-window", "phi3", "starcoder2"}
"""llama.cpp leaves the windows of these families out."""

SHORT = 5  # tokens: shorter than every window

HALF_GELU = {
    "gemma", "gemma2-file", "gemma3-scaled", "gemma4-keys-are-values", "gemma4-shared", "gemma4-unified",
    "gemma4-experts", "gpt-neox",
    "gpt-neox-serial", "starcoder2", "gpt2", "bloom", "mpt",
}  # fmt: skip
"""llama.cpp looks GELU up in a table of float16."""


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in OTHERWISE | NOT_LOADED])
def test_llamacpp_reads_the_same_model(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    size = "n_embd" if "n_embd" in case.fields else "hidden_size"
    fields: dict[str, Any] = {**case.fields, size: max(64, case.fields.get(size, 0))}
    if "head_dim" in fields:
        fields["head_dim"] = -(-fields["head_dim"] // 16) * 16
    tokens = prompt()[: SHORT if name in WITHOUT_WINDOW else None]
    theirs = expected_logits(replace(case, fields=fields).build(tmp_path), tokens).numpy()
    path = write_gguf(tmp_path, tmp_path / "m.gguf", "F32", tokenizer="no_vocab")
    f32 = 0
    model = needs.llama_cpp().Llama(
        str(path), n_ctx=256, logits_all=True, n_threads=1, type_k=f32, type_v=f32, verbose=False
    )
    model.eval(tokens)
    logits = np.array(model.scores[: len(tokens)])
    assert np.abs(logits - theirs).max() < (1e-2 if name in HALF_GELU else 1e-4)
