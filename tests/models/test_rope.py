"""Rope scalings where transformers has no counterpart to compare with."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headrace import LLM, SamplingParams
from headrace.models.rope import dynamic_theta, inverse_frequencies
from headrace.models.source import BUNDLED_FOLDER
from headrace.models.spec import RopeSpec

DYNAMIC = RopeSpec(theta=10_000.0, dim=64, kind="dynamic", factor=4.0, original_max_position=2048)


def test_dynamic_base_is_that_of_the_whole_context() -> None:
    assert dynamic_theta(DYNAMIC) == pytest.approx(10_000.0 * (4 * 4 - 3) ** (64 / 62))
    stretched = replace(DYNAMIC, kind="default", theta=dynamic_theta(DYNAMIC))
    assert inverse_frequencies(DYNAMIC) == inverse_frequencies(stretched)


def test_dynamic_of_a_shorter_cache_is_plain_up_to_the_original_length() -> None:
    assert dynamic_theta(DYNAMIC, 1) == dynamic_theta(DYNAMIC, 2048) == 10_000.0
    assert dynamic_theta(DYNAMIC, 4096) == pytest.approx(10_000.0 * (4 * 2 - 3) ** (64 / 62))


def test_tokens_do_not_depend_on_the_memory_that_is_free(tmp_path: Path) -> None:
    """max_model_len follows free memory where it is not set; a small KV cache makes it short here."""
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED_FOLDER / "tale-draft", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": 128, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
    (folder / "config.json").write_text(json.dumps(config))
    params = SamplingParams(temperature=0.0, max_tokens=8, prompt_logprobs=0)
    lengths, results = [], []
    for blocks in (2, 12):
        llm = LLM(str(folder), num_kv_blocks=blocks, num_threads=1, show_progress=False)
        (output,) = llm.generate("Once upon a time there was a fox", sampling_params=params, use_tqdm=False)
        lengths.append(llm.parts.resolved.max_model_len)
        results.append((output.outputs[0].token_ids, output.prompt_logprobs))
    assert lengths[0] <= 128 < lengths[1]
    assert results[0] == results[1]


def test_llama3_keeps_short_waves_and_divides_long_ones() -> None:
    plain = RopeSpec(theta=500_000.0, dim=128)
    scaled = RopeSpec(
        theta=500_000.0,
        dim=128,
        kind="llama3",
        factor=8.0,
        original_max_position=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    before, _ = inverse_frequencies(plain)
    after, factor = inverse_frequencies(scaled)
    assert factor == 1.0
    assert after[0] == before[0] and after[-1] == before[-1] / 8
    ratios = [new / old for new, old in zip(after, before, strict=True)]
    assert ratios == sorted(ratios, reverse=True)
    assert any(1 / 8 < ratio < 1 for ratio in ratios)


def test_yarn_attention_factor() -> None:
    yarn = RopeSpec(theta=10_000.0, dim=64, kind="yarn", factor=1.0, original_max_position=2048)
    values, factor = inverse_frequencies(yarn)
    assert factor == 1.0
    assert values == pytest.approx(inverse_frequencies(RopeSpec(theta=10_000.0, dim=64))[0])
