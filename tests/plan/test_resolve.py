"""Every open setting is filled, explained, and stays within the memory given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import EngineConfig
from headrace.config_resolve import ASKED, resolve
from headrace.errors import ConfigError
from headrace.models.spec import ModelSpec
from headrace.plan.hardware import Machine
from headrace.plan.hardware_table import find_hardware
from headrace.plan.kv import kv_demands, streaming_spec
from headrace.plan.ledger import ledger
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.units import GIB, MIB

MakeSpec = Callable[..., ModelSpec]
MakeMachine = Callable[..., Machine]

# The small model of the tests: KV bytes of one token over two layers, and of one block.
TOKEN_BYTES = 2 * 2 * 8 * 4
BLOCK_BYTES = 16 * TOKEN_BYTES


@pytest.fixture
def decide(make_spec: MakeSpec, make_machine: MakeMachine) -> Callable[..., ResolvedConfig]:
    """Resolve options for the small model, or another spec, in `memory` bytes."""

    def run(memory: int = GIB, spec: ModelSpec | None = None, **options: Any) -> ResolvedConfig:
        return resolve(
            EngineConfig.from_kwargs(model="tale", **options), spec or make_spec(), make_machine(memory)
        )

    return run


Decide = Callable[..., ResolvedConfig]


def refusal(decide: Decide, *args: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        decide(*args, **options)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


def reasons(resolved: ResolvedConfig) -> dict[str, str]:
    return {name: reason for name, _, reason in resolved.explain()}


# -- explain ------------------------------------------------------------------------------------------------


def test_explain_names_every_field_once(decide: Decide) -> None:
    resolved = decide()
    explained = resolved.explain()
    names = [name for name, _, _ in explained]
    assert names == [
        field.name
        for field in fields(ResolvedConfig)
        if field.name not in ("reasons", "draft_model", "draft_heads")
    ]
    assert set(names) == {field.name for field in fields(EngineConfig)} | {
        "kv_groups",
        "kernels",
        "weights_dtype",
        "weight_formats",
        "weights_from",
    }
    assert len(dict(resolved.reasons)) == len(resolved.reasons) == len(names)
    for name, value, reason in explained:
        assert value == getattr(resolved, name)
        assert reason and "\n" not in reason


ASKED_FOR: dict[str, tuple[object, dict[str, Any]]] = {
    "dtype": ("bfloat16", {}),
    "device": ("cpu", {}),
    "max_model_len": (100, {}),
    "max_num_seqs": (3, {}),
    "max_num_batched_tokens": (77, {}),
    "step_time_budget": (0.05, {}),
    "kv_cache_dtype": ("float32", {}),
    "block_size": (8, {}),
    "num_kv_blocks": (50, {}),
    "enable_prefix_caching": (False, {}),
    "enable_chunked_prefill": (False, {}),
    "kv_cache": (False, {}),
    "kv_layout": ("contiguous", {}),
    "batching": ("static", {}),
    "batch_size": (5, {"batching": "static"}),
    "batch_wait_s": (0.0, {"batching": "dynamic"}),
    "batch_max_tokens": (9, {"batching": "dynamic"}),
    "scheduling_policy": ("fair", {}),
    "preemption_victim": ("cheapest", {}),
    "attention_sinks": (4, {"sliding_window": 32}),
    "sliding_window": (32, {}),
    "stream_interval_s": (0.5, {}),
    "max_logprobs": (5, {}),
    "seed": (7, {}),
    "num_threads": (9, {}),
    "pin_threads": (True, {}),
    "tokenizer": ("tale-draft", {}),
    "revision": ("v1", {}),
    "download_dir": ("/elsewhere", {}),
    "hf_overrides": ({"rms_norm_eps": 1e-6}, {}),
    "generation_config": ("vllm", {}),
    "override_generation_config": ({"top_k": 3}, {}),
    "ops_force": ("reference", {}),
    "load_format": ("safetensors", {}),
    "speculative": ("ngram", {}),
    "num_speculative_tokens": (3, {"speculative": "ngram"}),
    "speculative_tree_nodes": (0, {"speculative": "ngram"}),
    "adaptive_speculation": (False, {}),
    "acceptance": ("rejection", {"speculative": "ngram"}),
}


@pytest.mark.parametrize("name", ASKED_FOR)
def test_requested_values_are_used(decide: Decide, name: str) -> None:
    value, more = ASKED_FOR[name]
    resolved = decide(**{name: value}, **more)
    assert getattr(resolved, name) == value
    assert reasons(resolved)[name].startswith(ASKED)
    assert reasons(decide(**more))[name] != ASKED


def test_every_option_was_tried(decide: Decide) -> None:
    untried = {
        "model",
        "kv_cache_memory",
        "quantization",
        "state_interval",
        *(
            name for name in reasons(decide()) if name.startswith("kv_eviction")
        ),  # native kernels: test_eviction.py
        "speculative_quantization",
        "tensor_parallel_size",
    }
    assert {field.name for field in fields(EngineConfig)} == {*ASKED_FOR, *untried}


def test_defaults(decide: Decide) -> None:
    resolved = decide()
    assert (resolved.device, resolved.dtype, resolved.kv_cache_dtype) == ("cpu", "float32", "float32")
    assert (resolved.max_model_len, resolved.max_num_seqs, resolved.max_num_batched_tokens) == (128, 64, 512)
    assert (resolved.block_size, resolved.num_threads) == (16, 4)
    # All that 64 sequences of 128 tokens can use, and no more: 512 blocks.
    assert resolved.kv_cache_memory == 512 * BLOCK_BYTES < MIB * 2
    assert "max_num_seqs sequences of max_model_len" in reasons(resolved)["kv_cache_memory"]
    assert [(g.name, g.num_blocks, g.block_size) for g in resolved.kv_groups] == [("full", 512, 16)]


def test_device_must_be_there(decide: Decide, make_spec: MakeSpec) -> None:
    assert "runs models on CPUs only" in refusal(decide, device="cuda")
    gpu = find_hardware("h200").machine()
    assert resolve(EngineConfig("tale"), make_spec(), gpu).max_num_seqs == 256
    with pytest.raises(ConfigError, match="is a GPU"):
        resolve(EngineConfig("tale", device="cpu"), make_spec(), gpu)


def test_kv_dtype_is_the_compute_type_in_torch(decide: Decide) -> None:
    assert "which only the native CPU kernels can do" in refusal(decide, kv_cache_dtype="bfloat16")
    assert decide(dtype="bfloat16", kv_cache_dtype="bfloat16").kv_cache_dtype == "bfloat16"


def test_kv_stays_in_16_bits_where_floats_are_faster(make_spec: MakeSpec) -> None:
    """A CPU with bf16 instructions that prefers the set without them, as Intel's do; torch uses them there."""
    intel = Machine(
        "cpu", "CPU", GIB, GIB, 4, frozenset({"avx512_bf16"}), ("avx512_vnni", "avx512", "portable")
    )

    def types(
        config: EngineConfig, spec: ModelSpec, packed_kv: str | None = None
    ) -> tuple[str, str, str | None]:
        resolved = resolve(config, spec, intel, packed_kv=packed_kv)
        return resolved.dtype, resolved.kv_cache_dtype, resolved.kernels

    spec = make_spec(checkpoint_dtype="bfloat16", head_dim=16)
    assert types(EngineConfig("tale"), spec) == ("float32", "bfloat16", "avx512_vnni")
    assert types(EngineConfig("tale", dtype="float32"), spec) == ("float32", "float32", "avx512_vnni")
    assert types(EngineConfig("tale", ops_force="avx512"), spec) == ("bfloat16", "bfloat16", "avx512")
    assert types(EngineConfig("tale", dtype="float32"), spec, "bfloat16")[1] == "bfloat16"  # as packed
    assert types(EngineConfig("tale", kv_cache_dtype="float32"), spec, "bfloat16")[1] == "float32"
    odd = make_spec(checkpoint_dtype="bfloat16", head_dim=72)
    assert types(EngineConfig("tale"), odd) == ("bfloat16", "bfloat16", None)


# -- steps --------------------------------------------------------------------------------------------------


def test_a_step_has_a_token_for_every_sequence(decide: Decide) -> None:
    assert decide(max_num_seqs=1000).max_num_batched_tokens == 1000
    assert decide(max_num_batched_tokens=10).max_num_seqs == 10
    assert decide(batching="static", batch_size=100).max_num_seqs == 100
    assert decide(batching="static", max_num_seqs=4).batch_size == 4


@pytest.mark.parametrize("option", ["enable_chunked_prefill", "kv_cache"])
def test_whole_prompts_need_whole_steps(decide: Decide, make_spec: MakeSpec, option: str) -> None:
    long = make_spec(max_position=9000)
    resolved = decide(spec=long, **{option: False})
    assert resolved.max_model_len == 9000 == resolved.max_num_batched_tokens
    assert "whole" in reasons(resolved)["max_num_batched_tokens"]
    assert not resolved.enable_chunked_prefill
    lowered = decide(spec=long, max_num_batched_tokens=600, **{option: False})
    assert lowered.max_model_len == 600
    assert "max_num_batched_tokens" in reasons(lowered)["max_model_len"]
    text = refusal(decide, spec=long, max_num_batched_tokens=600, max_model_len=601, **{option: False})
    assert "600 is less than max_model_len 601" in text and "whole" in text
    assert decide(spec=long, max_num_batched_tokens=600, max_model_len=601).max_num_batched_tokens == 600


def test_without_a_cache_nothing_is_shared(decide: Decide) -> None:
    resolved = decide(kv_cache=False)
    assert not resolved.enable_prefix_caching and "off" in reasons(resolved)["enable_prefix_caching"]
    assert resolved.max_num_batched_tokens == 4096  # several whole sequences, not one


# -- lengths ------------------------------------------------------------------------------------------------


def test_length_is_bounded_by_the_context(decide: Decide) -> None:
    assert decide(max_model_len=128).max_model_len == 128
    text = refusal(decide, max_model_len=129)
    assert "context of 128" in text and "--max-model-len" in text and "--sliding-window" in text


def test_streams_may_be_longer_than_the_context(decide: Decide) -> None:
    resolved = decide(attention_sinks=4, sliding_window=60)
    assert resolved.max_model_len > 100_000
    (group,) = resolved.kv_groups
    assert (group.sinks, group.window) == (4, 60)
    assert group.num_blocks == 64 * (1 + (60 + 512 + 15) // 16 + 2)
    assert decide(attention_sinks=4, sliding_window=60, max_model_len=500).max_model_len == 500
    assert "stream may be" in refusal(decide, attention_sinks=4, sliding_window=60, max_model_len=2**31 - 1)
    assert "attention sinks" in refusal(decide, attention_sinks=4, sliding_window=125)
    # A step that takes whole prompts cannot take a whole stream.
    assert decide(sliding_window=60, enable_chunked_prefill=False).max_model_len == 128


def test_contiguous_is_one_block_a_sequence(decide: Decide) -> None:
    resolved = decide(kv_layout="contiguous", max_model_len=100)
    assert resolved.block_size == 100 and resolved.num_kv_blocks == 64
    assert not resolved.enable_prefix_caching
    assert (
        decide(
            kv_layout="contiguous", kv_cache_memory=10 * 100 * TOKEN_BYTES, max_model_len=100
        ).num_kv_blocks
        == 10
    )
    assert decide(kv_layout="contiguous", kv_cache_memory=90 * TOKEN_BYTES + 1).max_model_len == 90


# -- memory -------------------------------------------------------------------------------------------------


def test_kv_memory_as_asked(decide: Decide) -> None:
    assert decide(kv_cache_memory=9 * BLOCK_BYTES - 1).num_kv_blocks == 8
    resolved = decide(kv_cache_memory=7 * BLOCK_BYTES)
    assert resolved.max_model_len == 7 * 16
    assert "KV cache can hold" in reasons(resolved)["max_model_len"]
    # More than sequences can use is kept for prefixes.
    assert decide(kv_cache_memory=1000 * BLOCK_BYTES).num_kv_blocks == 1000


def test_kv_blocks_as_asked(decide: Decide, make_spec: MakeSpec) -> None:
    resolved = decide(num_kv_blocks=3)
    assert (resolved.max_model_len, resolved.kv_cache_memory) == (48, 3 * BLOCK_BYTES)
    mixed = make_spec((None, 16), max_position=1024)
    groups = decide(spec=mixed, num_kv_blocks=64, max_num_seqs=1, max_num_batched_tokens=16).kv_groups
    assert [group.num_blocks for group in groups] == [64, 4]


def test_kv_memory_of_open_size_is_capped(
    decide: Decide, make_spec: MakeSpec, make_machine: MakeMachine
) -> None:
    big = make_spec((None,) * 8, kv_heads=(64,), max_position=8192)
    roomy = decide(spec=big, memory=100 * GIB)
    assert 4 * GIB - roomy.kv_cache_memory // roomy.num_kv_blocks < roomy.kv_cache_memory <= 4 * GIB
    assert "4.00 GiB" in reasons(roomy)["kv_cache_memory"]
    for more in ({}, {"max_model_len": 4000}):
        tight = decide(spec=big, memory=GIB, **more)
        assert tight.kv_cache_memory <= GIB // 2 and "50%" in reasons(tight)["kv_cache_memory"]
    long = make_spec((None,) * 8, kv_heads=(64,), max_position=262_144)
    one = decide(spec=long, memory=100 * GIB)
    assert (
        one.max_model_len == 262_144 and one.num_kv_blocks == 262_144 // 16
    )  # 8 GiB, for one whole sequence
    assert "one sequence" in reasons(one)["kv_cache_memory"]


def test_a_length_asked_for_may_take_more_than_the_share(decide: Decide, make_spec: MakeSpec) -> None:
    spec = make_spec((None,) * 4, kv_heads=(8,), max_position=8192)  # 16 MiB for the longest sequence
    memory, step = 98 * MIB, {"max_num_batched_tokens": 64, "max_num_seqs": 1}  # 74 MiB of it for such a step
    open_length = decide(memory, spec=spec, **step)
    assert open_length.max_model_len < 8192
    assert decide(memory, spec=spec, **step, max_model_len=8192).max_model_len == 8192
    text = refusal(decide, 85 * MIB, spec=spec, **step, max_model_len=8192)
    assert "8192 tokens needs 16.0 MiB" in text and "lower --max-model-len to " in text
    fits = int(text.split("lower --max-model-len to ")[1].split()[0])
    again = decide(85 * MIB, spec=spec, **step, max_model_len=fits)
    assert again.max_model_len == fits


@pytest.mark.parametrize(
    ("memory", "options", "words"),
    [
        (4000, {}, ("weights need", "use a smaller model", "--dtype bfloat16")),
        (4000, {"dtype": "bfloat16"}, ("weights need", "use a smaller model")),
        (40_000, {}, ("too little for the activations", "--max-num-batched-tokens")),
        (
            GIB,
            {"kv_cache_memory": BLOCK_BYTES - 1},
            ("one token needs 2.00 KiB", "raise --kv-cache-memory to 2048"),
        ),
        (
            GIB,
            {"kv_cache_memory": 2 * GIB},
            ("kv_cache_memory is 2.00 GiB", "is free", "lower --kv-cache-memory"),
        ),
        (
            GIB,
            {"kv_cache_memory": 3 * BLOCK_BYTES, "max_model_len": 49},
            ("49 tokens needs 8.00 KiB", "lower --max-model-len to 48, or raise --kv-cache-memory to 8192"),
        ),
        (
            GIB,
            {"num_kv_blocks": 3, "max_model_len": 49},
            ("4 blocks", "lower --max-model-len to 48, or raise --num-kv-blocks to 4"),
        ),
        (GIB, {"num_kv_blocks": 10**6}, ("num_kv_blocks 1000000 does not fit", "lower --num-kv-blocks")),
    ],
)
def test_too_little_memory_names_the_need_and_the_option(
    decide: Decide, memory: int, options: dict[str, Any], words: tuple[str, ...]
) -> None:
    text = refusal(decide, memory, **options)
    assert all(word in text for word in words), text


# -- all of it at random ------------------------------------------------------------------------------------

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["auto", "float32", "bfloat16"]),
        "max_model_len": st.integers(1, 130),
        "max_num_batched_tokens": st.integers(16, 700),
        "max_num_seqs": st.integers(1, 16),
        "kv_size": st.one_of(
            st.integers(1, 900).map(lambda n: {"kv_cache_memory": n * 999}),
            st.integers(1, 300).map(lambda n: {"num_kv_blocks": n}),
        ),
        "layout": st.one_of(
            st.just({"kv_layout": "contiguous"}),
            st.integers(1, 64).map(lambda n: {"block_size": n}),
            st.tuples(st.integers(0, 9), st.integers(1, 90)).map(
                lambda pair: {"attention_sinks": pair[0], "sliding_window": pair[1]}
            ),
        ),
        "enable_chunked_prefill": st.booleans(),
        "kv_cache": st.booleans(),
    },
)


@settings(max_examples=60)
@given(
    windows=st.lists(st.none() | st.integers(1, 150), min_size=1, max_size=4),
    sinks=st.integers(0, 5),
    max_position=st.integers(95, 400),
    stored=st.sampled_from(["float32", "float16", "bfloat16"]),
    flags=st.sampled_from([(), ("amx_bf16",)]),
    memory=st.sampled_from([20, 500, 1000, 2000, 4000, 8000]).flatmap(
        lambda n: st.integers(n * 500, n * 1000)
    ),
    options=OPTIONS,
)
def test_never_more_than_the_memory_and_always_one_longest_sequence(
    make_spec: MakeSpec,
    make_machine: MakeMachine,
    windows: list[int | None],
    sinks: int,
    max_position: int,
    stored: str,
    flags: tuple[str, ...],
    memory: int,
    options: dict[str, Any],
) -> None:
    for nested in ("kv_size", "layout"):
        options = {**options, **options.get(nested, {})}
        options.pop(nested, None)
    spec = make_spec(tuple(windows), sinks=sinks, max_position=max_position, checkpoint_dtype=stored)
    machine = make_machine(memory, flags)
    try:
        config = EngineConfig.from_kwargs(model="tale", **options)
        resolved = resolve(config, spec, machine)
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    assert resolve(config, spec, machine) == resolved
    costs = ledger(spec, resolved)
    assert costs.total <= memory
    assert costs.kv_pool_bytes == resolved.kv_cache_memory
    if config.kv_cache_bytes is not None:
        assert resolved.kv_cache_memory <= config.kv_cache_bytes
    demands = kv_demands(
        streaming_spec(spec, resolved.attention_sinks, resolved.sliding_window).kv_shapes,
        block_size=resolved.block_size,
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.max_num_seqs,
        chunk=resolved.max_num_batched_tokens,
        stored=resolved.memory_format.kv,
        least_chunk=1 if resolved.enable_chunked_prefill else None,
    )
    for group, demand in zip(resolved.kv_groups, demands, strict=True):
        assert group.num_blocks >= demand.per_sequence
        if group.window is None:
            assert group.num_blocks * group.block_size >= resolved.max_model_len
    assert resolved.max_num_seqs <= resolved.max_num_batched_tokens
    if not resolved.enable_chunked_prefill:
        assert resolved.max_num_batched_tokens >= resolved.max_model_len
    if not config.streaming:
        assert resolved.max_model_len <= max_position
    for name, value in options.items():
        if value is not None and name not in (
            "dtype",
            "kv_cache_memory",
            "num_kv_blocks",
            "enable_chunked_prefill",
        ):
            assert getattr(resolved, name) == value


def test_lower_memory_never_gives_a_longer_context(decide: Decide, make_spec: MakeSpec) -> None:
    spec = make_spec((None, 32), max_position=4096)
    lengths = [decide(memory, spec=spec).max_model_len for memory in range(5 * MIB, 60 * MIB, 2 * MIB)]
    assert lengths == sorted(lengths) and lengths[0] < 4096
