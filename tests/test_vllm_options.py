"""vLLM's engine options: obeyed, renamed, accepted with one warning, or refused with a sentence."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from headrace import LLM, SamplingParams
from headrace.build import survey
from headrace.config import EngineConfig
from headrace.errors import CheckpointError, ConfigError, ModelNotFound
from headrace.models.source import BUNDLED_FOLDER
from headrace.plan.vllm_options import ACCEPTED, RENAMED, translate

DOCS = Path(__file__).parent.parent / "docs" / "options.md"
PASTED = {
    "gpu_memory_utilization": 0.9, "swap_space": 4, "enforce_eager": True, "disable_log_stats": True,
    "trust_remote_code": False, "max_num_seqs": 4, "dtype": "half", "num_gpu_blocks_override": 64,
}  # fmt: skip


def test_one_warning_names_every_option_without_effect_and_what_happens_instead() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = EngineConfig.from_kwargs(model="tale", **PASTED)
    (warning,) = caught
    text = str(warning.message)
    assert "gpu_memory_utilization (models run on the CPU here: kv_cache_memory sizes the KV cache)" in text
    for name in ("swap_space", "enforce_eager", "disable_log_stats"):
        assert f"{name} ({ACCEPTED[name].instead})" in text
    assert "trust_remote_code" not in text and "max_num_seqs" not in text
    assert (config.dtype, config.num_kv_blocks, config.max_num_seqs) == ("float16", 64, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EngineConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer", ""), ("tokenizer", 3), ("revision", "a\0b"), ("download_dir", "x" * 5000),
        ("generation_config", None), ("hf_overrides", "text"), ("hf_overrides", {1: 2}),
        ("override_generation_config", {"x": "y" * 70_000}),
    ],
)  # fmt: skip
def test_bad_values(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must "):
        EngineConfig.from_kwargs(model="tale", **{name: value})


def test_options_that_would_change_an_answer_are_refused() -> None:
    for options, words in (
        ({"enable_lora": True}, "merge it into the weights"),
        ({"pipeline_parallel_size": 2}, "one device"),
        ({"task": "score"}, "generate and embed"),
        ({"num_gpu_blocks_override": 3, "num_kv_blocks": 4}, "same option"),
        ({"hf_overrides": [1]}, "named fields"),
        ({"override_generation_config": {"a": {1}}}, "JSON"),
    ):
        with pytest.raises(ConfigError, match=words):
            EngineConfig.from_kwargs(model="tale", **options)
    quiet = {"enable_lora": False, "pipeline_parallel_size": 1, "task": "auto", "tokenizer_mode": "auto"}
    assert translate(quiet) == ({}, None)


def test_speculation_under_vllms_names() -> None:
    for pasted, ours in (
        ({"method": "ngram", "num_speculative_tokens": 5, "max_model_len": None}, ("ngram", 5, None)),
        ({"model": "[ngram]"}, ("ngram", None, None)),
        ({"model": "tale-draft", "quantization": "int8"}, ("tale-draft", None, "int8")),
        ({"method": "draft_model", "model": "tale-draft"}, ("tale-draft", None, None)),
    ):
        config = EngineConfig.from_kwargs(model="tale", speculative_config=pasted)
        found = (config.speculative, config.num_speculative_tokens, config.speculative_quantization)
        assert found == ours
    unused = {"method": "ngram", "prompt_lookup_max": 4, "max_model_len": 9, "draft_tensor_parallel_size": 1}
    kept, warning = translate({"speculative_config": unused})
    assert kept == {"speculative": "ngram"} and warning is not None
    assert (
        "speculative_config prompt_lookup_max (" in warning
        and "speculative_config max_model_len (" in warning
    )
    assert "draft_tensor" not in warning
    old = EngineConfig.from_kwargs(model="tale", speculative_model="tale-draft", num_speculative_tokens=3)
    assert (old.speculative, old.num_speculative_tokens) == ("tale-draft", 3)
    pasted = {"method": "ngram", "acceptance_method": "typical_acceptance_sampler"}
    assert EngineConfig.from_kwargs(model="tale", speculative_config=pasted).acceptance == "typical"
    rejecting: dict[str, object] = {"spec_decoding_acceptance_method": "rejection_sampler"}
    config = EngineConfig.from_kwargs(model="tale", speculative_model="tale-draft", **rejecting)
    assert config.acceptance == "rejection"
    for wrong, words in (
        ("ngram", "must be an object"),
        ("auto", "must be an object"),
        ({"method": "psychic"}, "method 'psychic' is not here"),
        ({"num_speculative_tokens": 3}, "names neither"),
        ({"method": "ngram", "acceptance": 1}, "'acceptance' is not supported"),
        ({"method": "ngram", "model": "tale-draft"}, "ngram needs no model, so 'tale-draft' would not run"),
        ([], "must be an object"),
    ):
        with pytest.raises(ConfigError, match=words):
            EngineConfig.from_kwargs(model="tale", speculative_config=wrong)
    for ours in ({"speculative": "tale-draft"}, {"num_speculative_tokens": 4}):
        with pytest.raises(ConfigError, match="are the same option"):
            EngineConfig.from_kwargs(
                model="tale", speculative_config={"method": "ngram", "num_speculative_tokens": 3}, **ours
            )
    assert EngineConfig.from_kwargs(model="tale", speculative_config=None).speculative is None


def test_the_command_line_takes_them_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "inspect", "tale", "--gpu-memory-utilization", "0.9", "--enforce-eager",
         "--swap-space", "4", "--max-num-seqs", "4", "--generation-config", "vllm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    (said,) = done.stderr.splitlines()
    assert said.startswith("headrace: accepted without effect: gpu_memory_utilization (")
    assert "enforce_eager" in said and "swap_space" in said


def test_the_table_in_the_docs_is_complete() -> None:
    named = set(re.findall(r"^\| `(\w+)`", DOCS.read_text(), re.MULTILINE))
    assert {*RENAMED, *ACCEPTED} <= named


def test_hf_overrides_replace_fields_of_the_config() -> None:
    plan = survey(EngineConfig("tale", hf_overrides={"max_position_embeddings": 77}, kv_cache_memory="8MiB"))
    assert plan.resolved.max_model_len == 77 == plan.spec.max_position
    assert survey(EngineConfig("tale", kv_cache_memory="8MiB")).resolved.max_model_len == 1024


def test_another_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    text = (BUNDLED_FOLDER / "tale" / "tokenizer.json").read_text()
    for name in ("tokenizer_config.json", "config.json"):
        shutil.copy(BUNDLED_FOLDER / "tale" / name, folder)
    spec = json.loads(text)
    spec["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    llm = LLM("tale", tokenizer=str(folder), kv_cache_memory="4MiB", num_threads=1, show_progress=False)
    own = LLM("tale", kv_cache_memory="4MiB", num_threads=1, show_progress=False)
    assert (
        llm.tokenizer.encode("ONCE Upon")
        == own.tokenizer.encode("once upon")
        != own.tokenizer.encode("ONCE Upon")
    )
    with pytest.raises(ModelNotFound, match="no tokenizer"):
        LLM("tale", tokenizer="nowhere", show_progress=False)


@pytest.fixture
def shy(tmp_path: Path) -> Path:
    """The bundled draft model whose authors recommend greedy answers of three tokens."""
    folder = tmp_path / "shy"
    shutil.copytree(BUNDLED_FOLDER / "tale-draft", folder)
    (folder / "generation_config.json").write_text(
        json.dumps(
            {"eos_token_id": 1, "temperature": 0.0, "max_new_tokens": 3, "top_k": None, "do_sample": True}
        )
    )
    return folder


def open_llm(folder: Path, **options: object) -> LLM:
    return LLM(str(folder), kv_cache_memory="4MiB", num_threads=1, show_progress=False, **options)


def test_defaults_of_the_generation_config_are_obeyed(shy: Path) -> None:
    llm = open_llm(shy)
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=3)
    first, again = (llm.generate("Once upon", use_tqdm=False)[0].outputs[0].token_ids for _ in range(2))
    assert len(first) == 3 and first == again
    *_, streamed = llm.stream("Once upon")
    assert streamed.outputs[0].token_ids == first
    (given,) = llm.generate("Once upon", SamplingParams(temperature=0.0, max_tokens=9), use_tqdm=False)
    assert len(given.outputs[0].token_ids) == 9  # what a caller says holds


def test_they_can_be_switched_off_and_overridden(shy: Path, tmp_path: Path) -> None:
    assert open_llm(shy, generation_config="vllm").get_default_sampling_params() == SamplingParams()
    changed = open_llm(shy, override_generation_config={"temperature": 0.3, "min_p": 0.1})
    assert changed.get_default_sampling_params() == SamplingParams(temperature=0.3, min_p=0.1, max_tokens=3)
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "generation_config.json").write_text(json.dumps({"top_p": 0.5}))
    assert open_llm(shy, generation_config=str(other)).get_default_sampling_params() == SamplingParams(
        top_p=0.5
    )
    with pytest.raises(ModelNotFound, match="neither"):
        open_llm(shy, generation_config="nowhere")
    (other / "generation_config.json").write_text(json.dumps({"top_p": 7}))
    with pytest.raises(CheckpointError, match=r"top_p.*--generation-config vllm"):
        open_llm(shy, generation_config=str(other))
