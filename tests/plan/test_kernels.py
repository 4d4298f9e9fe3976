"""When the native kernels run a model, and what options they allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.config import EngineConfig
from headrace.config_resolve import ASKED, resolve
from headrace.errors import ConfigError
from headrace.models.spec import ModelSpec
from headrace.ops.cpu.support import EMULATED
from headrace.plan.hardware import Machine
from headrace.plan.ledger import ledger
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.units import GIB

KERNELS = ("avx512", "avx2", "portable", EMULATED)


@pytest.fixture
def decide(
    known_specs: dict[str, tuple[ModelSpec, int]], make_machine: Callable[..., Machine]
) -> Callable[..., ResolvedConfig]:
    """Resolve options for TinyLlama on a CPU with native kernels."""

    def run(kernels: tuple[str, ...] = KERNELS, stored: str = "bfloat16", **options: Any) -> ResolvedConfig:
        machine = replace(
            make_machine(16 * GIB, ("avx512_bf16",)), kernels=kernels, kernels_note="never built"
        )
        spec = replace(known_specs["TinyLlama-1.1B"][0], checkpoint_dtype=stored)
        return resolve(EngineConfig.from_kwargs(model="tale", **options), spec, machine)

    return run


Decide = Callable[..., ResolvedConfig]


def reason(resolved: ResolvedConfig, name: str) -> str:
    return dict(resolved.reasons)[name]


def refusal(decide: Decide, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        decide(**options)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


def test_native_by_default(decide: Decide) -> None:
    resolved = decide()
    assert (resolved.kernels, resolved.dtype, resolved.kv_cache_dtype) == ("avx512", "bfloat16", "bfloat16")
    assert resolved.block_size == 32 and "matrix unit" in reason(resolved, "block_size")
    assert resolved.weight_format is not None and resolved.weight_format.name == "bf16"
    assert "best instruction set" in reason(resolved, "kernels")


def test_torch_where_they_are_missing(decide: Decide) -> None:
    resolved = decide(kernels=())
    assert resolved.kernels is None and resolved.weight_format is None and resolved.block_size == 16
    assert "never built" in reason(resolved, "kernels")
    assert "float16" in reason(decide(dtype="float16"), "kernels")
    assert decide(ops_force="torch").kernels is None
    assert decide(ops_force="reference").kernels is None


@pytest.mark.parametrize("name", KERNELS)
def test_sets_can_be_forced(decide: Decide, name: str) -> None:
    resolved = decide(ops_force=name)
    assert resolved.kernels == name and reason(resolved, "ops_force") == ASKED


def test_a_forced_set_that_is_missing(decide: Decide) -> None:
    text = refusal(decide, ops_force="amx")
    assert "ops_force amx cannot serve" in text and "here are avx512, avx2" in text
    assert "never built" in refusal(decide, ops_force="avx2", kernels=())
    assert "not in float16" in refusal(decide, ops_force="avx2", dtype="float16")


@pytest.mark.parametrize(
    ("asked", "name", "bits"), [("int8", "int8", 8), ("int4-g128", "int4", 4), ("int4-asym-a16",) * 2 + (4,)]
)
def test_quantization(decide: Decide, asked: str, name: str, bits: int) -> None:
    resolved = decide(quantization=asked)
    assert resolved.quantization == name and reason(resolved, "quantization") == ASKED
    assert resolved.weight_format is not None and resolved.weight_format.bits == bits
    assert resolved.dtype == "bfloat16"


def test_quantization_needs_the_native_kernels(decide: Decide) -> None:
    assert "quantization int4 needs the native CPU kernels" in refusal(
        decide, quantization="int4", kernels=()
    )
    assert "reference was asked for" in refusal(decide, quantization="int8", ops_force="reference")


def test_float16_checkpoints(decide: Decide) -> None:
    plain = decide(stored="float16")
    assert plain.dtype == "float32" and "every bit" in reason(plain, "dtype")
    rounded = decide(stored="float16", quantization="int4")
    assert rounded.dtype == "bfloat16" and "weights are rounded" in reason(rounded, "dtype")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv", ["float32", "bfloat16", "int8", "fp8", "int4"])
def test_kv_types_are_free_on_the_native_path(decide: Decide, dtype: str, kv: str) -> None:
    resolved = decide(dtype=dtype, kv_cache_dtype=kv)
    assert (resolved.dtype, resolved.kv_cache_dtype) == (dtype, kv)
    assert reason(resolved, "kv_cache_dtype") == ASKED
    assert kv in refusal(decide, dtype="float16", kv_cache_dtype=kv)


def test_fp8_has_the_name_that_vllm_gives_it(decide: Decide) -> None:
    assert decide(kv_cache_dtype="fp8_e4m3").kv_cache_dtype == "fp8"


def test_kv_types_that_no_kernel_reads(decide: Decide) -> None:
    assert "float32, bfloat16, int8, fp8, int4" in refusal(decide, kv_cache_dtype="float16")


def test_the_ledger_counts_packed_bytes(
    decide: Decide, known_specs: dict[str, tuple[ModelSpec, int]]
) -> None:
    spec, parameters = known_specs["TinyLlama-1.1B"]
    matrices = 22 * (2048 * (2560 + 2048) + 3 * 2048 * 5632) + 32_000 * 2048
    beside = 32_000 * 2048 * 2 + (2 * 22 + 1) * 2048 * 4  # embeddings in bf16, norms in float32
    plain = ledger(spec, decide())
    assert plain.parameters == parameters and plain.weight_bytes == matrices * 2 + beside
    four = ledger(spec, decide(quantization="int4"))
    assert four.weight_bytes == matrices // 2 + matrices // 128 * 2 + beside
    eight = ledger(spec, decide(quantization="int8-channel"))
    rows = 22 * (2560 + 2048 + 2 * 5632 + 2048) + 32_000
    padding = eight.weight_bytes - (matrices + rows * 2 + beside)
    assert 0 <= padding < 89 * 4096  # scales lie in whole pages


def test_the_ledger_counts_scales_and_padding_of_kv(
    decide: Decide, known_specs: dict[str, tuple[ModelSpec, int]]
) -> None:
    spec = known_specs["TinyLlama-1.1B"][0]
    narrow = decide(kv_cache_dtype="int8", num_kv_blocks=64)
    token = 22 * 2 * 4 * (64 + 4)
    assert ledger(spec, narrow).kv_token_bytes == token
    assert narrow.kv_cache_memory == ledger(spec, narrow).kv_pool_bytes == 64 * 32 * token
    padded = decide(block_size=20, num_kv_blocks=64, max_model_len=100)
    assert padded.kv_cache_memory == 64 * 32 * 22 * 2 * 4 * 64 * 2
    assert "room for 12 more" in ledger(spec, padded).kv_pools[0].how


def test_4_bits_take_less_than_three_tenths_of_bfloat16(
    decide: Decide, known_specs: dict[str, tuple[ModelSpec, int]]
) -> None:
    """A block's codes, a scale and a minimum of each feature of its keys, a scale of each value; and beside them the
    blocks that sequences are writing, and those of a step and of the one before."""
    spec = known_specs["TinyLlama-1.1B"][0]
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "num_kv_blocks": 512}
    wide, narrow = decide(**options), decide(kv_cache_dtype="int4", **options)
    block = 22 * 4 * (2 * 32 * 64 // 2 + 64 * 2 * 2 + 32 * 2)
    recent = 2 * 256 // 32 + 8 * 3
    found = ledger(spec, narrow)
    assert found.kv_token_bytes * 32 == block < 0.3 * 32 * ledger(spec, wide).kv_token_bytes
    assert [group.num_blocks for group in narrow.kv_groups] == [512, recent]
    assert found.kv_pool_bytes == narrow.kv_cache_memory == 512 * block + recent * 32 * 22 * 2 * 4 * 64 * 2
    assert "blocks it is writing" in reason(narrow, "kv_groups")


def test_4_bits_need_blocks_that_are_coded_whole(decide: Decide) -> None:
    assert "it is 20" in refusal(decide, kv_cache_dtype="int4", block_size=20)
    assert "it is 128" in refusal(decide, kv_cache_dtype="int4", block_size=128)
    assert "--kv-layout paged" in refusal(decide, kv_cache_dtype="int4", kv_layout="contiguous")


def test_memory_that_is_too_small_hints_at_fewer_bits(
    known_specs: dict[str, tuple[ModelSpec, int]], make_machine: Callable[..., Machine]
) -> None:
    machine = replace(make_machine(GIB, ("avx512_bf16",)), kernels=KERNELS)
    spec = known_specs["TinyLlama-1.1B"][0]
    with pytest.raises(ConfigError, match=r"in bf16.*--quantization int4"):
        resolve(EngineConfig("tale"), spec, machine)
    assert resolve(EngineConfig("tale", quantization="int4"), spec, machine).kernels == "avx512"
