"""What the user may ask, and what is refused in one sentence."""

from __future__ import annotations

import inspect
import json
import math
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import LLM, AsyncLLM
from headrace import config as config_module
from headrace.config import EVICTION_SIZES, EngineConfig, EngineOptions
from headrace.errors import ConfigError

INT_RANGES = config_module._INT_RANGES
CHOICES = config_module._CHOICES
BOOLS = config_module._BOOLS

# What else an option needs to mean anything.
COMPANIONS: dict[str, dict[str, Any]] = {
    "batch_size": {"batching": "dynamic"},
    "batch_wait_s": {"batching": "dynamic"},
    "batch_max_tokens": {"batching": "dynamic"},
    "attention_sinks": {"sliding_window": 64},
    "num_speculative_tokens": {"speculative": "ngram"},
    "speculative_tree_nodes": {"speculative": "ngram"},
    "acceptance": {"speculative": "ngram"},
    **{name: {"kv_eviction": "snapkv"} for name in EVICTION_SIZES},
}


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_kwargs(**{"model": "tale", **options})
    text = str(caught.value)
    assert text and "\n" not in text and not text.endswith(".") and len(text) < 400
    return text


def test_defaults_leave_options_open_and_are_frozen() -> None:
    config = EngineConfig("tale")
    assert config.dtype == "auto" and config.max_model_len is None and config.kv_cache_memory is None
    with pytest.raises(FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]


def test_the_options_of_both_engines_are_the_fields_with_their_types_and_defaults() -> None:
    options = {field.name: field.type for field in fields(EngineConfig) if field.name != "model"}
    written = {name: kind.__forward_arg__ for name, kind in EngineOptions.__annotations__.items()}
    assert written == options and not EngineOptions.__required_keys__
    defaults = {field.name: field.default for field in fields(EngineConfig) if field.name != "model"}
    for engine in (LLM, AsyncLLM):
        shown = inspect.signature(engine).parameters
        assert {name: shown[name].default for name in options} == defaults
        assert {name: shown[name].annotation for name in options} == options
        assert all(shown[name].kind is inspect.Parameter.KEYWORD_ONLY for name in options)
        assert set(shown) - set(options) <= {"model", "show_progress", "options"}


def test_every_field_is_checked_by_some_rule() -> None:
    by_hand = {"model", "batch_wait_s", "stream_interval_s", "ops_force", "quantization", "speculative"}
    by_hand |= {"speculative_quantization", "step_time_budget"}
    by_hand |= {"tokenizer", "revision", "download_dir", "hf_overrides"}
    by_hand |= {"generation_config", "override_generation_config"}
    assert {f.name for f in fields(EngineConfig)} == {*INT_RANGES, *CHOICES, *BOOLS, *by_hand}


@pytest.mark.parametrize("name", INT_RANGES)
def test_whole_numbers_have_bounds(name: str) -> None:
    low, high = INT_RANGES[name]
    if name == "tensor_parallel_size":
        high = 1  # more are refused for another reason
    companions = COMPANIONS.get(name, {})
    for value in (low, high):
        assert getattr(EngineConfig(model="tale", **{name: value}, **companions), name) == value
    for value in (low - 1, INT_RANGES[name][1] + 1, 10**5000, -(10**5000)):
        assert name in refusal(**{name: value}, **companions)
    for wrong in (1.0, math.nan, math.inf, True, [1], {}, b"1"):
        assert name in refusal(**{name: wrong}, **companions)
    if name != "kv_cache_memory":
        assert name in refusal(**{name: "1"}, **companions)


@pytest.mark.parametrize("name", ["seed", "tensor_parallel_size", *BOOLS, *CHOICES, "model"])
def test_fields_without_an_open_state_refuse_none(name: str) -> None:
    assert name in refusal(**{name: None})


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name: str) -> None:
    for value in CHOICES[name]:
        config = EngineConfig(model="tale", **{name: value, **COMPANIONS.get(name, {})})
        assert getattr(config, name) == value
    for wrong in ("", "AUTO", "nonsense", 1, True, ["auto"], math.nan):
        text = refusal(**{name: wrong})
        assert name in text and CHOICES[name][0] in text


@pytest.mark.parametrize("name", BOOLS)
def test_switches(name: str) -> None:
    for value in (True, False):
        assert getattr(EngineConfig(model="tale", **{name: value}), name) is value
    for wrong in (0, 1, "true", None, math.nan):
        assert name in refusal(**{name: wrong})


def test_seconds() -> None:
    for value in (0, 0.0, 0.25, 3600):
        assert EngineConfig("tale", batching="dynamic", batch_wait_s=value).batch_wait_s == float(value)
    for wrong in (-0.001, 3600.1, math.nan, math.inf, -math.inf, 10**400, "1", True, [], 10**5000):
        assert "batch_wait_s" in refusal(batching="dynamic", batch_wait_s=wrong)
        assert "stream_interval_s" in refusal(stream_interval_s=wrong)
    assert EngineConfig("tale", stream_interval_s=0).stream_interval_s == 0.0


def test_step_time_budgets() -> None:
    for value, kept in (("auto", "auto"), ("off", "off"), (0.05, 0.05), ("0.05", 0.05), (1, 1.0)):
        assert EngineConfig("tale", step_time_budget=value).step_time_budget == kept
    for wrong in ("", "AUTO", "fast", "nan", 0, 1e-5, -1, 3601, math.nan, None, True, [], "1" * 5000):
        assert "step_time_budget" in refusal(step_time_budget=wrong)
    assert "KV cache" in refusal(step_time_budget="auto", kv_cache=False)
    assert "enable_chunked_prefill" in refusal(step_time_budget=0.1, enable_chunked_prefill=False)


def test_text_fields() -> None:
    assert EngineConfig("m" * 4096).model == "m" * 4096
    assert EngineConfig(Path("some/folder")).model == "some/folder"  # type: ignore[arg-type]
    for wrong in ("", "m" * 4097, "a\0b", 1, b"tale", ["tale"]):
        assert "model" in refusal(model=wrong)
    assert EngineConfig("tale", ops_force="reference").ops_force == "reference"
    for wrong in ("", 1, True, {"linear": "reference"}, "x" * 4097):
        assert "ops_force" in refusal(ops_force=wrong)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("2GB", 2 * 10**9), ("1.5g", 3 << 29), (" 4096 ", 4096), (4096, 4096)],
)
def test_kv_cache_memory_is_read_as_bytes(text: str | int, size: int) -> None:
    config = EngineConfig("tale", kv_cache_memory=text)
    assert config.kv_cache_memory == size == config.kv_cache_bytes
    assert EngineConfig("tale").kv_cache_bytes is None


@pytest.mark.parametrize(
    "text", ["", "many", "2 bananas", "-1GB", "nan", "1e9", "2GB2", "0", "0.1", "9" * 40]
)
def test_kv_cache_memory_that_is_not_a_size(text: str) -> None:
    assert refusal(kv_cache_memory=text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantization": "auto"}, "quantization 'auto' is none of the formats here: int8 or int4"),
        ({"quantization": 4}, "quantization must be text"),
        ({"ops_force": "sse2"}, "ops_force must be one of amx, avx512"),
        ({"speculative": {"method": "ngram"}}, "speculative must be text"),
        ({"speculative": "ngram,"}, "has an empty part"),
        ({"speculative": "ngram,ngram"}, "names a drafter twice"),
        ({"speculative": "one,two"}, "names two models"),
        ({"num_speculative_tokens": 4}, "no meaning without speculative"),
        ({"speculative_tree_nodes": 4}, "no meaning without speculative"),
        ({"acceptance": "typical"}, "no meaning without speculative"),
        ({"speculative": "ngram", "speculative_quantization": "int4"}, "no meaning without a draft model"),
        ({"speculative": "ngram", "kv_cache": False}, "speculative needs the KV cache"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size 2 is not available in this version"),
        ({"kv_cache_dtype": "int5"}, "kv_cache_dtype must be one of"),
        ({"load_format": "gguf"}, "load_format must be one of"),
        ({"kv_cache_memory": 1, "num_kv_blocks": 1}, "give one of them"),
        ({"kv_layout": "contiguous", "block_size": 16}, "block_size belongs to the paged layout"),
        ({"kv_layout": "contiguous", "sliding_window": 16}, "use paged"),
        ({"attention_sinks": 4}, "attention_sinks needs sliding_window"),
        ({"batch_size": 4}, "no meaning with continuous batching"),
        ({"batch_wait_s": 1.0, "batching": "static"}, "no meaning with static batching"),
        ({"batch_max_tokens": 9, "batching": "static"}, "no meaning with static batching"),
        ({"max_num_seqs": 65, "max_num_batched_tokens": 64}, "max_num_seqs 65 is greater"),
        ({"batch_size": 5, "max_num_seqs": 4, "batching": "static"}, "batch_size 5 is greater"),
        ({"batch_size": 5, "max_num_batched_tokens": 4, "batching": "static"}, "batch_size 5 is greater"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    assert words in refusal(**options)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("max_modellen", "max_model_len"),
        ("enable_prefix_cache", "enable_prefix_caching"),
        ("max_seq_len", "max_model_len"),
        ("tensor_parallel", "tensor_parallel_size"),
    ],
)
def test_unknown_options_suggest_the_closest(typed: str, meant: str) -> None:
    assert refusal(**{typed: 1}) == f"unknown option {typed!r}; did you mean {meant}?"


def test_unknown_options_without_a_close_name() -> None:
    assert refusal(zzzzqqq=1) == "unknown option 'zzzzqqq'"
    assert len(refusal(**{"x" * 100_000: 1})) < 200
    with pytest.raises(ConfigError, match="model is required"):
        EngineConfig.from_kwargs(dtype="auto")


CONFIGS = st.builds(
    EngineConfig,
    model=st.sampled_from(["tale", "org/name", "/folder"]),
    dtype=st.sampled_from(CHOICES["dtype"]),
    max_model_len=st.none() | st.integers(1, 4096),
    max_num_seqs=st.none() | st.integers(32, 64),
    max_num_batched_tokens=st.none() | st.integers(64, 4096),
    kv_cache_memory=st.none() | st.integers(1, 2**40) | st.just("1.5GiB"),
    enable_prefix_caching=st.booleans(),
    batching=st.just("dynamic"),
    batch_size=st.none() | st.integers(1, 32),
    batch_wait_s=st.none() | st.floats(0, 3600),
    stream_interval_s=st.floats(0, 10),
    step_time_budget=st.sampled_from(["auto", "off", 0.25]),
    sliding_window=st.just(64),
    attention_sinks=st.none() | st.integers(0, 16),
    quantization=st.sampled_from([None, "int8", "int4-g128", "int4-g32-asym-a16"]),
    seed=st.integers(-(2**63), 2**63 - 1),
    ops_force=st.none() | st.just("reference"),
)


@given(CONFIGS)
def test_json_round_trip(config: EngineConfig) -> None:
    assert EngineConfig.from_json(config.to_json()) == config
    assert EngineConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert hash(EngineConfig.from_json(config.to_json())) == hash(config)


@pytest.mark.parametrize("data", [None, [], "tale", 1, {1: 2}, {}])
def test_json_of_another_shape(data: object) -> None:
    with pytest.raises(ConfigError):
        EngineConfig.from_json(data)


def test_planning_needs_no_torch() -> None:
    modules = "headrace.config_resolve, headrace.plan.report, headrace.plan.hardware"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
